// How far GEMMs are from FP64 on operands that make a tensor core lose most.
//
//   random:            as a quantiser leaves them
//   one sign:          all products are positive, so nothing that is truncated cancels
//   large, then small: the first product of a sum is 2^14 times as large as those that follow or
//                      more, so that they are lost as long as the tensor core sums them with it
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/prove/gpu_bench.h"

namespace octile::tuner {

struct GemmAtTokens {
  GemmProblem problem;
  std::int64_t tokens = 0;
};

// The kinds of codes of adversarial operands.
enum class Adversary { kOneSign, kLargeThenSmall };

// Returns the value of the code at a column of an operand; `bits` are random. `starts_sum`: the
// column is the first of a sum.
float adversarial_value(Adversary adversary, bool starts_sum, std::uint64_t bits);

// Returns the problem and token count with the same sums over K, but of few rows and columns, on
// which the default configuration of the whole problem runs.
GemmAtTokens small_gemm(const GemmAtTokens& gemm, const DeviceSpec& device);

// Returns for each GEMM the largest (|D - R| - ulp(R) / 2) / S of its default kernel over samples
// of all these operands, R and S as in docs/numerics.md; infinite if D is not finite. Rows and
// columns are few, K is whole. Errors: the kernel's build; those of the device.
Result<std::vector<double>> adversarial_errors(TunerContext& context,
                                               const std::vector<GemmAtTokens>& gemms,
                                               std::uint64_t seed);

}  // namespace octile::tuner
