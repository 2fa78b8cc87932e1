// Random FP8 operands on a GPU. Calls rotate over several copies, so that no call finds its
// operands in L2.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/families/gemm/check.h"
#include "runtime/measure/tensor.h"

namespace octile {

// Returns how many copies of the data of one call exceed twice the L2 together; at least 2.
int rotation_slots(const GpuSession& gpu, std::int64_t bytes_of_a_call);
// Returns the size of operands and result, each counted once, without scales.
std::int64_t bytes_of_call(const GemmProblem& problem, std::int64_t m);

// Returns a tensor of N(0, 1) quantised as a block quantiser would do it. Its scales are around 1 /
// 160 and differ by a factor of up to 4. Values are drawn from pools of prime length, so that rows
// differ. Errors: kUnsupported for scales that are not fp32.
Result<DeviceTensor> random_tensor(const GpuSession& gpu, const TensorType& type, std::int64_t rows,
                                   std::int64_t cols, std::uint64_t seed);

// The values of an unscaled tensor.
enum class Values {
  kNormal,   // N(0, 1)
  kSpecial,  // N(0, 1) with some zeros, subnormals, largest values, infinities and NaNs
};

// Return bf16, fp16 or fp32 values drawn from a pool as above.
Result<DeviceBuffer> random_values(const GpuSession& gpu, DType type, std::int64_t elements,
                                   std::uint64_t seed, Values values);
Result<DeviceBuffer> random_bf16(const GpuSession& gpu, std::int64_t elements, std::uint64_t seed);

// The operands and the result of one GEMM.
struct GemmSlot {
  DeviceTensor a, b;
  DeviceBuffer d;
};
octile_gemm_args args_of(const GemmSlot& slot);
// Returns slots that all hold the same values.
Result<std::vector<GemmSlot>> make_gemm_slots(const GpuSession& gpu, const GemmProblem& problem,
                                              std::int64_t m, int slots, std::uint64_t seed);

// Poisons the slot's D, calls `run` and compares D with FP64 on the slot's operands.
Result<ProductCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem,
                                   GemmSlot& slot, const std::function<Status()>& run);

}  // namespace octile
