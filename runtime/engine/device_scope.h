// Scopes around driver calls: which context they go to, and what a capture forbids them.
#pragma once

#include <cuda.h>

#include "runtime/driver/driver.h"

namespace octile {

// For the scope, a context of the device is current: the thread's own where it is on that device (a
// framework's, primary or not), else the device's primary context.
class DeviceScope {
 public:
  DeviceScope(const Driver& driver, int ordinal, CUcontext primary) : driver_(driver) {
    CUcontext current = nullptr;
    in_primary_ = driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == primary;
    if (in_primary_) return;
    CUdevice device = -1;  // CUdevice handles are ordinals
    if (driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && device == ordinal) return;
    result_ = driver->cuCtxPushCurrent(primary);
    in_primary_ = pushed_ = result_ == CUDA_SUCCESS;
  }
  ~DeviceScope() {
    CUcontext popped = nullptr;
    if (pushed_) driver_->cuCtxPopCurrent(&popped);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  CUresult result() const { return result_; }
  bool in_primary() const { return in_primary_; }

 private:
  const Driver& driver_;
  CUresult result_ = CUDA_SUCCESS;
  bool pushed_ = false;
  bool in_primary_ = false;
};

// For the scope, this thread may load kernels although some stream captures in the global mode,
// which would otherwise forbid the call and spoil the capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver->cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_->cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace octile
