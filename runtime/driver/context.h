// A device's primary context, the one the CUDA runtime and the frameworks use.
#pragma once

#include <memory>
#include <utility>

#include "runtime/driver/driver.h"

namespace octile {

// Keeps the primary context of a device alive. Movable, usable from any thread.
class PrimaryContext {
 public:
  // Errors: kDeviceError, kOutOfMemory.
  static Result<PrimaryContext> retain(std::shared_ptr<const Driver> driver, int ordinal);
  ~PrimaryContext();
  PrimaryContext(PrimaryContext&& other) noexcept;
  PrimaryContext& operator=(PrimaryContext&& other) noexcept;

  const std::shared_ptr<const Driver>& driver() const { return driver_; }
  CUcontext get() const { return context_; }
  CUdevice device() const { return device_; }

 private:
  PrimaryContext(std::shared_ptr<const Driver> driver, CUdevice device, CUcontext context)
      : driver_(std::move(driver)), device_(device), context_(context) {}

  std::shared_ptr<const Driver> driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;  // null: moved from
};

// Makes a context current for a scope of one thread, and what was current again after it. Where it
// is current already, as in a framework's thread, neither end calls more than cuCtxGetCurrent.
class ContextGuard {
 public:
  static Result<ContextGuard> enter(const Driver& driver, CUcontext context);
  ~ContextGuard();
  ContextGuard(ContextGuard&& other) noexcept;
  ContextGuard& operator=(ContextGuard&&) = delete;

 private:
  explicit ContextGuard(const Driver* pushed) : pushed_(pushed) {}
  const Driver* pushed_ = nullptr;  // null: nothing to pop
};

}  // namespace octile
