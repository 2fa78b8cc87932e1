// Device memory that is freed at the end of its scope. It serves tests, bench and demo; Octile's
// calls take the caller's pointers and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/driver/driver.h"

namespace octile {

// Device memory of the context that is current in allocate(). When the buffer is destroyed, that
// context must be current and must no longer use the memory. Copies are asynchronous for the host
// only with pinned memory, as the driver defines.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // empty: pointer 0, 0 bytes
  // Returns a buffer of `bytes` bytes; 0 gives an empty buffer. Errors: kOutOfMemory, kDeviceError.
  static Result<DeviceBuffer> allocate(std::shared_ptr<const Driver> driver, std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  CUdeviceptr get() const { return pointer_; }
  void* pointer() const { return reinterpret_cast<void*>(pointer_); }
  std::size_t bytes() const { return bytes_; }

  // Copy between the host and [offset, offset + bytes), which must lie within the buffer. Errors:
  // kInvalidArgument, kDeviceError.
  Status upload(const void* source, std::size_t bytes, CUstream stream, std::size_t offset = 0);
  Status download(void* target, std::size_t bytes, CUstream stream, std::size_t offset = 0) const;
  Status fill(std::uint8_t value, CUstream stream);  // sets every byte

 private:
  DeviceBuffer(std::shared_ptr<const Driver> driver, CUdeviceptr pointer, std::size_t bytes)
      : driver_(std::move(driver)), pointer_(pointer), bytes_(bytes) {}
  Status check_range(const char* call, std::size_t bytes, std::size_t offset) const;

  std::shared_ptr<const Driver> driver_;
  CUdeviceptr pointer_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace octile
