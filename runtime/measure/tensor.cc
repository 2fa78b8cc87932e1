#include "runtime/measure/tensor.h"

#include <utility>

#include "runtime/engine/reference_arguments.h"

namespace octile {
namespace {

// Returns a tensor whose buffers are what `make` returns for each buffer of `tensor`.
template <typename Tensor, typename Make>
Result<Tensor> with_buffers_of(const DeviceTensor& tensor, const Make& make) {
  auto data = make(tensor.data);
  if (!data) return tl::unexpected<Error>(data.error());
  auto scales = make(tensor.scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  return Tensor{tensor.type, tensor.rows, tensor.cols, std::move(*data), std::move(*scales)};
}

const void* address(const std::vector<std::uint8_t>& bytes) { return bytes.data(); }
const void* address(const DeviceBuffer& buffer) { return buffer.pointer(); }

template <typename Tensor>
octile_gemm_args packed_args(const Tensor& a, const Tensor& b, void* d) {
  octile_gemm_args args{};
  args.m = a.rows;
  args.a = address(a.data);
  args.a_scale = address(a.scales);
  args.b = address(b.data);
  args.b_scale = address(b.scales);
  args.d = d;
  return args;
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

octile_gemm_args gemm_args(const HostTensor& a, const HostTensor& b, void* d) {
  return packed_args(a, b, d);
}
octile_gemm_args gemm_args(const DeviceTensor& a, const DeviceTensor& b, void* d) {
  return packed_args(a, b, d);
}

reference::GemmArgs reference_args(const HostTensor& a, const HostTensor& b) {
  return reference_args(gemm_args(a, b, nullptr));
}

}  // namespace octile
