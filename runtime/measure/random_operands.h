// Random tensors on a GPU.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/core/types.h"
#include "runtime/driver/buffer.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/tensor.h"

namespace octile {

// Returns codes of N(0, 1), scaled as a block quantiser would, and scales around 1 / 160 that
// differ by up to 4. Both are drawn from pools whose lengths are prime, so that rows differ.
// Errors: kUnsupported for scales that are neither fp32 nor E8M0.
Result<DeviceTensor> random_tensor(const GpuSession& gpu, const TensorType& type, std::int64_t rows,
                                   std::int64_t cols, std::uint64_t seed);

// The values of a tensor without scales.
enum class Values {
  kNormal,   // N(0, 1)
  kSpecial,  // kNormal with zeros, subnormals, the largest values, infinities and NaNs
};

// Returns bf16, fp16 or fp32 values, drawn from a pool of random values.
Result<DeviceBuffer> random_values(const GpuSession& gpu, DType type, std::int64_t elements,
                                   std::uint64_t seed, Values values);
Result<DeviceBuffer> random_bf16(const GpuSession& gpu, std::int64_t elements, std::uint64_t seed);

}  // namespace octile
