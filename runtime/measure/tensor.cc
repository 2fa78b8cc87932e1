#include "runtime/measure/tensor.h"

#include <utility>

namespace octile {

Result<std::vector<std::uint8_t>> download(const GpuSession& gpu, const DeviceBuffer& buffer) {
  std::vector<std::uint8_t> bytes(buffer.bytes());
  Status ok = buffer.download(bytes.data(), bytes.size(), gpu.stream());
  if (ok) ok = gpu.synchronize();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return bytes;
}

Result<HostTensor> download(const GpuSession& gpu, const DeviceTensor& tensor) {
  auto data = download(gpu, tensor.data);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = download(gpu, tensor.scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return HostTensor{tensor.type, tensor.rows, tensor.cols, std::move(*data), std::move(*scales)};
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
  auto data = copy_of(gpu, tensor.data);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = copy_of(gpu, tensor.scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return DeviceTensor{tensor.type, tensor.rows, tensor.cols, std::move(*data), std::move(*scales)};
}

octile_gemm_args gemm_args(const HostTensor& a, const HostTensor& b, void* d) {
  octile_gemm_args args{};
  args.m = a.rows;
  args.a = a.data.data();
  args.a_scale = a.scales.data();
  args.b = b.data.data();
  args.b_scale = b.scales.data();
  args.d = d;
  return args;
}

reference::GemmArgs reference_args(const HostTensor& a, const HostTensor& b) {
  reference::GemmArgs args;
  args.m = a.rows;
  args.a = a.data.data();
  args.a_scale = a.scales.data();
  args.b = b.data.data();
  args.b_scale = b.scales.data();
  return args;
}

octile_gemm_args gemm_args(const DeviceTensor& a, const DeviceTensor& b, void* d) {
  octile_gemm_args args{};
  args.m = a.rows;
  args.a = a.data.pointer();
  args.a_scale = a.scales.pointer();
  args.b = b.data.pointer();
  args.b_scale = b.scales.pointer();
  args.d = d;
  return args;
}

}  // namespace octile
