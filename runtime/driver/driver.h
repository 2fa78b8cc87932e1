// The CUDA driver, opened at run time: the library starts and plans on hosts that have none.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "generator/core/error.h"
#include "runtime/driver/driver_functions.h"

namespace octile {

// One typed pointer per function of the list, none null. `#name` is what dlsym was given; the
// member bears the name <cuda.h> expands it to, so `api.cuMemAlloc` and `api.cuMemAlloc_v2` are the
// same.
struct DriverApi {
#define OCTILE_DECLARE(name) decltype(&::name) name = nullptr;
  OCTILE_DRIVER_FUNCTIONS(OCTILE_DECLARE)
#undef OCTILE_DECLARE
};

// An opened and initialised driver. Immutable, usable from any thread, opened once per path and
// process and never unloaded: contexts and kernels outlive every handle that could close it.
class Driver {
 public:
  // OCTILE_LIBCUDA where it is set, else libcuda.so.1. Errors: kNoDriver, with what is missing and
  // what that costs. A failure is not remembered: the next call tries again.
  static Result<std::shared_ptr<const Driver>> open();
  static Result<std::shared_ptr<const Driver>> open(const std::string& path);

  // driver->cuLaunchKernelEx(...)
  const DriverApi* operator->() const { return &api_; }
  const DriverApi& api() const { return api_; }

  const std::string& path() const { return path_; }   // as it was opened: "libcuda.so.1"
  int version() const { return version_; }            // 13000: CUDA 13.0
  std::string version_text() const;                   // "13.0"
  int device_count() const { return device_count_; }  // >= 1

  // `call` is the function whose result this is: check(driver->cuMemAlloc(...), "cuMemAlloc").
  // Errors: kOutOfMemory, kCapturing (not permitted in a stream capture), else kDeviceError.
  Status check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return {};
    return failure(result, call);
  }

 private:
  Driver() = default;
  Status failure(CUresult result, const char* call) const;
  static Result<std::shared_ptr<const Driver>> load(const std::string& path);

  DriverApi api_;
  std::string path_;
  int version_ = 0;
  int device_count_ = 0;
};

}  // namespace octile
