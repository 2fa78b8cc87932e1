#include "runtime/driver/context.h"

#include <utility>

namespace octile {

Result<PrimaryContext> PrimaryContext::retain(std::shared_ptr<const Driver> driver, int ordinal) {
  CUdevice device = 0;
  if (Status got = driver->check((*driver)->cuDeviceGet(&device, ordinal), "cuDeviceGet"); !got)
    return tl::unexpected(got.error());
  CUcontext context = nullptr;
  if (Status got = driver->check((*driver)->cuDevicePrimaryCtxRetain(&context, device),
                                 "cuDevicePrimaryCtxRetain");
      !got)
    return tl::unexpected(got.error());
  return PrimaryContext(std::move(driver), device, context);
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) (*driver_)->cuDevicePrimaryCtxRelease(device_);
}

PrimaryContext::PrimaryContext(PrimaryContext&& other) noexcept
    : driver_(std::move(other.driver_)),
      device_(other.device_),
      context_(std::exchange(other.context_, nullptr)) {}

PrimaryContext& PrimaryContext::operator=(PrimaryContext&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(device_, other.device_);
  std::swap(context_, other.context_);
  return *this;
}

Result<ContextGuard> ContextGuard::enter(const Driver& driver, CUcontext context) {
  CUcontext current = nullptr;
  if (Status got = driver.check(driver->cuCtxGetCurrent(&current), "cuCtxGetCurrent"); !got)
    return tl::unexpected(got.error());
  if (current == context) return ContextGuard(nullptr);
  if (Status got = driver.check(driver->cuCtxPushCurrent(context), "cuCtxPushCurrent"); !got)
    return tl::unexpected(got.error());
  return ContextGuard(&driver);
}

ContextGuard::~ContextGuard() {
  if (pushed_ == nullptr) return;
  CUcontext popped = nullptr;
  (*pushed_)->cuCtxPopCurrent(&popped);
}

ContextGuard::ContextGuard(ContextGuard&& other) noexcept
    : pushed_(std::exchange(other.pushed_, nullptr)) {}

}  // namespace octile
