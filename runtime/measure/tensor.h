// Quantised tensors on the host and on a GPU, packed, as GEMMs take them.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/core/types.h"
#include "runtime/measure/gpu_session.h"

namespace octile {

// One quantised tensor [rows][cols] with default strides; its scales follow the layout table.
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

Result<std::vector<std::uint8_t>> download(const GpuSession& gpu, const DeviceBuffer& buffer);
Result<HostTensor> download(const GpuSession& gpu, const DeviceTensor& tensor);
Result<DeviceBuffer> copy_of(const GpuSession& gpu, const DeviceBuffer& buffer);
Result<DeviceTensor> copy_of(const GpuSession& gpu, const DeviceTensor& tensor);

}  // namespace octile
