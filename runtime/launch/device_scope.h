// Scopes around driver calls: the context they use, and permission to load during a capture.
#pragma once

#include <cuda.h>

#include "runtime/driver/driver.h"

namespace octile {

// Keeps a context of the device current for the scope. This is the thread's own context if that is
// on the device (a framework's, primary or not), else the device's primary context.
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

// Lets this thread load kernels for the scope while some stream captures in the global mode.
// Otherwise the capture would forbid the call and become invalid.
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
