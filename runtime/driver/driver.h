// Opens the CUDA driver at run time, so that the library starts and plans on hosts without a
// driver.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "generator/core/error.h"
#include "runtime/driver/driver_functions.h"

namespace octile {

// One typed pointer for each function of the list; none is null. `#name` is the symbol for dlsym.
// <cuda.h> expands the member's name, so `api.cuMemAlloc` and `api.cuMemAlloc_v2` are the same
// member.
struct DriverApi {
#define OCTILE_DECLARE(name) decltype(&::name) name = nullptr;
  OCTILE_DRIVER_FUNCTIONS(OCTILE_DECLARE)
#undef OCTILE_DECLARE
};

// An opened and initialised driver. It is immutable and may be used from any thread. Each path is
// opened once in a process and never unloaded, because contexts and kernels outlive every handle
// that could close it.
class Driver {
 public:
  // Opens OCTILE_LIBCUDA if it is set, else libcuda.so.1. Errors: kNoDriver, saying what is missing
  // and what does not work without it. A failure is not remembered: the next call tries again.
  static Result<std::shared_ptr<const Driver>> open();
  static Result<std::shared_ptr<const Driver>> open(const std::string& path);

  // Gives access to the functions: driver->cuLaunchKernelEx(...).
  const DriverApi* operator->() const { return &api_; }
  const DriverApi& api() const { return api_; }

  // Returns a driver some of whose functions `change` replaces.
  template <typename Change>
  Driver with(const Change& change) const {
    Driver other = *this;
    change(other.api_);
    return other;
  }

  const std::string& path() const { return path_; }  // as it was opened: "libcuda.so.1"
  // Returns the file that was loaded, links resolved; path() if that is unknown.
  std::string file() const;
  // Tells builds of the driver apart: driver_build() of the file that was opened.
  const std::string& build() const { return build_; }
  int version() const { return version_; }            // 13000: CUDA 13.0
  std::string version_text() const;                   // "13.0"
  int device_count() const { return device_count_; }  // >= 1

  // Returns the error for a driver call's result: check(driver->cuMemAlloc(...), "cuMemAlloc").
  // `call` names the function. Errors: kOutOfMemory, kCapturing (not permitted in a stream
  // capture), else kDeviceError.
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
  std::string build_;
  int version_ = 0;
  int device_count_ = 0;
};

}  // namespace octile
