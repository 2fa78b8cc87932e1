// A GPU to run on: its primary context, current for the session's thread, and a stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "generator/core/device_spec.h"
#include "runtime/driver/buffer.h"
#include "runtime/driver/context.h"
#include "runtime/driver/driver.h"
#include "runtime/driver/stream.h"

namespace octile {

struct Library;

// Buffers and graphs made with a session must be destroyed before it, in the thread that opened it.
class GpuSession {
 public:
  // Opens a session on `device`: "cuda" or "cuda:N", whose description has the matrix units that
  // the library trusts (TrustedDevices). Errors: those of octile::resolve_target; kInvalidArgument
  // if the device is not live; kDeviceError if no kernel of it is trusted.
  static Result<std::unique_ptr<GpuSession>> open(Library& library, const std::string& device);

  const std::string& device() const { return device_; }  // "cuda:0"
  const DeviceSpec& spec() const { return spec_; }
  // Returns the UUID of the device, or of the part of it that MIG gives, in 32 hexadecimal digits.
  std::string uuid() const;
  int ordinal() const { return context_.device(); }  // CUdevice handles are ordinals
  const std::shared_ptr<const Driver>& driver() const { return context_.driver(); }
  CUstream stream() const { return stream_.get(); }

  Result<DeviceBuffer> allocate(std::size_t bytes) const;
  // Returns a device copy of `bytes` host bytes. The copy is complete when this returns.
  Result<DeviceBuffer> upload(const void* source, std::size_t bytes) const;
  Status synchronize() const { return stream_.synchronize(); }
  Result<std::size_t> free_bytes() const;

 private:
  GpuSession(std::string device, DeviceSpec spec, PrimaryContext context, ContextGuard guard,
             Stream stream)
      : device_(std::move(device)),
        spec_(std::move(spec)),
        context_(std::move(context)),
        guard_(std::move(guard)),
        stream_(std::move(stream)) {}

  std::string device_;
  DeviceSpec spec_;
  PrimaryContext context_;
  ContextGuard guard_;
  Stream stream_;
};

}  // namespace octile
