// Device memory that is freed with its scope. For tests, bench and demo: Octile's calls themselves
// take the caller's pointers and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/driver/driver.h"

namespace octile {

// Bytes of device memory of the context current in allocate(); that context must be current, and no
// longer use the memory, when it is destroyed. Copies are asynchronous with respect to the host on
// pinned memory only, as the driver defines.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // empty: pointer 0, 0 bytes
  // 0 bytes gives an empty buffer. Errors: kOutOfMemory, kDeviceError.
  static Result<DeviceBuffer> allocate(std::shared_ptr<const Driver> driver, std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  CUdeviceptr get() const { return pointer_; }
  void* pointer() const { return reinterpret_cast<void*>(pointer_); }
  std::size_t bytes() const { return bytes_; }

  // [offset, offset + bytes) must lie within the buffer. Errors: kInvalidArgument, kDeviceError.
  Status upload(const void* source, std::size_t bytes, CUstream stream, std::size_t offset = 0);
  Status download(void* target, std::size_t bytes, CUstream stream, std::size_t offset = 0) const;
  Status fill(std::uint8_t value, CUstream stream);  // every byte

 private:
  DeviceBuffer(std::shared_ptr<const Driver> driver, CUdeviceptr pointer, std::size_t bytes)
      : driver_(std::move(driver)), pointer_(pointer), bytes_(bytes) {}
  Status check_range(const char* call, std::size_t bytes, std::size_t offset) const;

  std::shared_ptr<const Driver> driver_;
  CUdeviceptr pointer_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace octile
