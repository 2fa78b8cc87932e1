// The fake driver's control functions, found in the library from which a Driver was opened.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "runtime/driver/driver.h"
#include "tests/fake_driver/fake_driver.h"

namespace octile::test {

// The fake driver for one test: in a clean state with the named devices (fake_driver.h).
class FakeDriver {
 public:
  explicit FakeDriver(const char* devices = "h200,h200") {
    void* library = dlopen(OCTILE_FAKE_DRIVER_PATH, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      ADD_FAILURE() << "no fake driver at " << OCTILE_FAKE_DRIVER_PATH << ": " << dlerror();
      std::abort();
    }
    resolve(library, "fake_cuda_reset", &reset);
    resolve(library, "fake_cuda_make_context", &make_context);
    resolve(library, "fake_cuda_fail", &fail);
    resolve(library, "fake_cuda_call_count", &call_count);
    resolve(library, "fake_cuda_launch_count", &launch_count);
    resolve(library, "fake_cuda_get_launch", &get_launch);
    resolve(library, "fake_cuda_set_executor", &set_executor);
    resolve(library, "fake_cuda_set_memory", &set_memory);
    resolve(library, "fake_cuda_live_allocations", &live_allocations);
    resolve(library, "fake_cuda_live_libraries", &live_libraries);
    resolve(library, "fake_cuda_live_streams", &live_streams);
    setenv("FAKE_CUDA_DEVICES", devices, 1);
    reset();
    // A Driver is opened once in a process, but a reset discards its cuInit.
    CUresult (*init)(unsigned) = nullptr;
    resolve(library, "cuInit", &init);
    init(0);
  }

  // Returns a handle to the fake. Each Driver keeps the device count of its first opening.
  std::shared_ptr<const Driver> open() const {
    auto driver = Driver::open(OCTILE_FAKE_DRIVER_PATH);
    if (!driver) {
      ADD_FAILURE() << driver.error().message;
      std::abort();
    }
    return *driver;
  }

  decltype(&fake_cuda_reset) reset = nullptr;
  decltype(&fake_cuda_make_context) make_context = nullptr;
  decltype(&fake_cuda_fail) fail = nullptr;
  decltype(&fake_cuda_call_count) call_count = nullptr;
  decltype(&fake_cuda_launch_count) launch_count = nullptr;
  decltype(&fake_cuda_get_launch) get_launch = nullptr;
  decltype(&fake_cuda_set_executor) set_executor = nullptr;
  decltype(&fake_cuda_set_memory) set_memory = nullptr;
  decltype(&fake_cuda_live_allocations) live_allocations = nullptr;
  decltype(&fake_cuda_live_libraries) live_libraries = nullptr;
  decltype(&fake_cuda_live_streams) live_streams = nullptr;

 private:
  template <typename Function>
  static void resolve(void* library, const char* name, Function* slot) {
    *slot = reinterpret_cast<Function>(dlsym(library, name));
    if (*slot == nullptr) {
      ADD_FAILURE() << "the fake driver lacks " << name;
      std::abort();
    }
  }
};

}  // namespace octile::test
