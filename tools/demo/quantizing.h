// Quantising through the public API, on the host or on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/families.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/measure/tensor.h"
#include "tools/common/handles.h"

namespace octile::tools {

// The problem of quantising a bf16 tensor of `cols` columns to `type`, for any row count.
QuantizeProblem quantize_problem(std::int64_t cols, const TensorType& type);

// x: bf16 [rows][cols]. On the host by the reference executor, through the public API's device
// "host".
Result<HostTensor> quantize_on_host(const LibraryHandle& library, const TensorType& type,
                                    const std::uint16_t* x, std::int64_t rows, std::int64_t cols);
// On the GPU, by a plan prepared here. `x` is a device pointer.
Result<DeviceTensor> quantize_on_gpu(const LibraryHandle& library, const GpuSession& gpu,
                                     const TensorType& type, const DeviceBuffer& x,
                                     std::int64_t rows, std::int64_t cols);

// bf16 [rows][cols] of N(0, 1), drawn from a pool whose length is prime: rows differ.
std::vector<std::uint16_t> random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed);
Result<DeviceTensor> quantize_random(const LibraryHandle& library, const GpuSession& gpu,
                                     const TensorType& type, std::int64_t rows, std::int64_t cols,
                                     std::uint64_t seed);

}  // namespace octile::tools
