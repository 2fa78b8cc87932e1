// A device's primary context, which the CUDA runtime and the frameworks also use.
#pragma once

#include <memory>
#include <utility>

#include "runtime/driver/driver.h"

namespace octile {

// Keeps the primary context of a device alive. Movable; may be used from any thread.
class PrimaryContext {
 public:
  // Retains the device's primary context. Errors: kDeviceError, kOutOfMemory.
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
  CUcontext context_ = nullptr;  // null after a move
};

// Makes a context current in one thread for a scope, and restores the previous one afterwards. If
// the context is already current, as in a framework's thread, only cuCtxGetCurrent is called.
class ContextGuard {
 public:
  static Result<ContextGuard> enter(const Driver& driver, CUcontext context);
  ~ContextGuard();
  ContextGuard(ContextGuard&& other) noexcept;
  ContextGuard& operator=(ContextGuard&&) = delete;

 private:
  explicit ContextGuard(const Driver* pushed) : pushed_(pushed) {}
  const Driver* pushed_ = nullptr;  // null if there is nothing to pop
};

}  // namespace octile
