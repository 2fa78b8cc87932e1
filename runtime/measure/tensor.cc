#include "runtime/measure/tensor.h"

#include <utility>

namespace octile {
namespace {

// Returns a tensor whose buffers are the results of `make` for each buffer of `tensor`.
template <typename Tensor, typename Make>
Result<Tensor> with_buffers_of(const DeviceTensor& tensor, const Make& make) {
  auto data = make(tensor.data);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = make(tensor.scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return Tensor{tensor.type, tensor.rows, tensor.cols, std::move(*data), std::move(*scales)};
}

}  // namespace

Result<std::vector<std::uint8_t>> download(const GpuSession& gpu, const DeviceBuffer& buffer) {
  std::vector<std::uint8_t> bytes(buffer.bytes());
  Status ok = buffer.download(bytes.data(), bytes.size(), gpu.stream());
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return bytes;
}

Result<HostTensor> download(const GpuSession& gpu, const DeviceTensor& tensor) {
  return with_buffers_of<HostTensor>(
      tensor, [&](const DeviceBuffer& buffer) { return download(gpu, buffer); });
}

Result<DeviceBuffer> copy_of(const GpuSession& gpu, const DeviceBuffer& buffer) {
  auto copy = gpu.allocate(buffer.bytes());
  if (!copy || buffer.bytes() == 0) return copy;
  const Status ok = gpu.driver()->check(
      (*gpu.driver())->cuMemcpyDtoDAsync(copy->get(), buffer.get(), buffer.bytes(), gpu.stream()),
      "cuMemcpyDtoDAsync");
  if (!ok) return tl::unexpected<Error>(ok.error());
  return copy;
}

Result<DeviceTensor> copy_of(const GpuSession& gpu, const DeviceTensor& tensor) {
  return with_buffers_of<DeviceTensor>(
      tensor, [&](const DeviceBuffer& buffer) { return copy_of(gpu, buffer); });
}

}  // namespace octile
