#include "runtime/driver/buffer.h"

#include <fmt/format.h>

#include <utility>

namespace octile {

Result<DeviceBuffer> DeviceBuffer::allocate(std::shared_ptr<const Driver> driver,
                                            std::size_t bytes) {
  if (bytes == 0) return DeviceBuffer();
  CUdeviceptr pointer = 0;
  if (Status got = driver->check((*driver)->cuMemAlloc(&pointer, bytes), "cuMemAlloc"); !got)
    return fail(got.error().code,
                fmt::format("{}, asked for {} bytes", got.error().message, bytes));
  return DeviceBuffer(std::move(driver), pointer, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  if (pointer_ != 0) (*driver_)->cuMemFree(pointer_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : driver_(std::move(other.driver_)),
      pointer_(std::exchange(other.pointer_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(pointer_, other.pointer_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Status DeviceBuffer::check_range(const char* call, std::size_t bytes, std::size_t offset) const {
  if (offset <= bytes_ && bytes <= bytes_ - offset) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} of {} bytes at offset {} does not fit a buffer of {} bytes", call,
                          bytes, offset, bytes_));
}

Status DeviceBuffer::upload(const void* source, std::size_t bytes, CUstream stream,
                            std::size_t offset) {
  if (Status fits = check_range("upload", bytes, offset); !fits || bytes == 0) return fits;
  return driver_->check((*driver_)->cuMemcpyHtoDAsync(pointer_ + offset, source, bytes, stream),
                        "cuMemcpyHtoDAsync");
}

Status DeviceBuffer::download(void* target, std::size_t bytes, CUstream stream,
                              std::size_t offset) const {
  if (Status fits = check_range("download", bytes, offset); !fits || bytes == 0) return fits;
  return driver_->check((*driver_)->cuMemcpyDtoHAsync(target, pointer_ + offset, bytes, stream),
                        "cuMemcpyDtoHAsync");
}

Status DeviceBuffer::fill(std::uint8_t value, CUstream stream) {
  if (bytes_ == 0) return {};
  return driver_->check((*driver_)->cuMemsetD8Async(pointer_, value, bytes_, stream),
                        "cuMemsetD8Async");
}

}  // namespace octile
