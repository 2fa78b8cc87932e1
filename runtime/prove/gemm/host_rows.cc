#include "runtime/prove/gemm/host_rows.h"

#include <utility>

namespace octile {

Result<HostRows> HostRows::of(const GpuSession& gpu, const DeviceTensor& tensor) {
  auto scales = download(gpu, tensor.scales);
  if (!scales) return tl::unexpected<Error>(scales.error());
  HostRows rows(gpu, tensor);
  rows.data_ = std::make_unique_for_overwrite<std::uint8_t[]>(tensor.data.bytes());
  rows.scales_ = std::move(*scales);
  return rows;
}

std::int64_t HostRows::ld() const {
  return tensor_->rows == 0 ? 0 : static_cast<std::int64_t>(tensor_->data.bytes()) / tensor_->rows;
}

Status HostRows::fetch(std::int64_t first, std::int64_t count) {
  const auto at = static_cast<std::size_t>(first * ld());
  const auto bytes = static_cast<std::size_t>(count * ld());
  if (bytes == 0) return {};
  Status ok = tensor_->data.download(data_.get() + at, bytes, gpu_->stream(), at);
  return ok ? gpu_->synchronize() : ok;
}

HostOperand HostRows::operand() const {
  return {tensor_->rows, tensor_->cols, ld(), data_.get(), scales_.data()};
}

}  // namespace octile
