// Quantised tensors of random values, by the public API.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/families.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/tensor.h"
#include "tools/common/handles.h"

namespace octile::tools {

// Returns the problem of quantising a bf16 tensor of `cols` columns to `type`, for any row count.
QuantizeProblem quantize_problem(std::int64_t cols, const TensorType& type);

// Quantises x, bf16 [rows][cols], on the GPU with a plan that it prepares.
Result<DeviceTensor> quantize_on_gpu(const LibraryHandle& library, const GpuSession& gpu,
                                     const TensorType& type, const DeviceBuffer& x,
                                     std::int64_t rows, std::int64_t cols);

// Returns bf16 [rows][cols] of N(0, 1). Values come from a pool whose length is prime, so that rows
// differ.
std::vector<std::uint16_t> random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed);
Result<DeviceTensor> quantize_random(const LibraryHandle& library, const GpuSession& gpu,
                                     const TensorType& type, std::int64_t rows, std::int64_t cols,
                                     std::uint64_t seed);

}  // namespace octile::tools
