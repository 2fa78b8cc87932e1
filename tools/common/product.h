// One product of quantised operands, on the host or on a GPU, and how far it is from FP64.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/problem.h"
#include "runtime/reference/metrics.h"
#include "tools/common/gpu_session.h"
#include "tools/common/handles.h"

namespace octile::tools {

// One quantised tensor, [rows][cols] packed, scales as the layout table says.
struct HostTensor {
  TensorType type;
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint8_t> data;
  std::vector<std::uint8_t> scales;
};
struct DeviceTensor {
  TensorType type;
  std::int64_t rows = 0, cols = 0;
  DeviceBuffer data;
  DeviceBuffer scales;
};

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
Result<HostTensor> download(const GpuSession& gpu, const DeviceTensor& tensor);
Result<std::vector<std::uint8_t>> download(const GpuSession& gpu, const DeviceBuffer& buffer);

// Arguments of D = A B^T with everything packed.
octile_gemm_args gemm_args(const HostTensor& a, const HostTensor& b, void* d);
octile_gemm_args gemm_args(const DeviceTensor& a, const DeviceTensor& b, void* d);

// How far D is from the FP64 product of the same quantised operands, over windows that sample it:
// first and last rows and columns, and between.
struct ProductCheck {
  bool ok = true;
  std::int64_t elements = 0;
  reference::ToleranceReport worst;  // the window with the largest |D - R| / S
};
// d: [a.rows][b.rows] of the problem's type. The operands are expected to be finite and not all
// zero in any window: where they are, that too is not ok.
Result<ProductCheck> check_product(const GemmProblem& problem, const HostTensor& a,
                                   const HostTensor& b, const void* d);

}  // namespace octile::tools
