// Random FP8 operands on a GPU, in several copies that calls rotate over, so that none finds its
// own in L2.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/problem.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/families/gemm/check.h"
#include "runtime/measure/tensor.h"

namespace octile {

// How many copies of what one call touches pass twice the L2 together; at least 2.
int rotation_slots(const GpuSession& gpu, std::int64_t bytes_of_a_call);
// Operands and result, read or written once each; scales excluded.
std::int64_t bytes_of_call(const GemmProblem& problem, std::int64_t m);

// Codes of N(0, 1) scaled as a block quantiser would, scales around 1 / 160 that differ by up to 4.
// Drawn from pools whose lengths are prime, so that rows differ. Errors: kUnsupported for scales
// that are not fp32.
Result<DeviceTensor> random_tensor(const GpuSession& gpu, const TensorType& type, std::int64_t rows,
                                   std::int64_t cols, std::uint64_t seed);

// What an unscaled tensor holds.
enum class Values {
  kNormal,   // N(0, 1)
  kSpecial,  // the same; among them zeros, subnormals, the largest, infinities and NaNs
};

// bf16, fp16 or fp32, drawn from a pool as above.
Result<DeviceBuffer> random_values(const GpuSession& gpu, DType type, std::int64_t elements,
                                   std::uint64_t seed, Values values);
Result<DeviceBuffer> random_bf16(const GpuSession& gpu, std::int64_t elements, std::uint64_t seed);

// What one product reads and writes.
struct GemmSlot {
  DeviceTensor a, b;
  DeviceBuffer d;
};
octile_gemm_args args_of(const GemmSlot& slot);
// All slots hold the same values.
Result<std::vector<GemmSlot>> make_gemm_slots(const GpuSession& gpu, const GemmProblem& problem,
                                              std::int64_t m, int slots, std::uint64_t seed);

// Poisons the slot's D, runs, and compares D with FP64 on the slot's operands.
Result<ProductCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem,
                                   GemmSlot& slot, const std::function<Status()>& run);

}  // namespace octile
