// The kernels a library handle has loaded: each once, made ready once for each device.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "generator/error.h"
#include "runtime/driver/context.h"
#include "runtime/driver/driver.h"
#include "runtime/engine/kernel_build.h"

namespace octile {

struct LoadedKernel {
  CUkernel kernel = nullptr;         // launched in any context of the device it was made ready for
  std::vector<CUkernel> companions;  // as EmittedKernel has them
  CUcontext primary = nullptr;       // of that device
};

class KernelRegistry {
 public:
  KernelRegistry() = default;
  ~KernelRegistry();  // unloads
  KernelRegistry(const KernelRegistry&) = delete;
  KernelRegistry& operator=(const KernelRegistry&) = delete;

  // Loads the kernel where this handle has not, raises its shared-memory limit on the device and
  // puts it into the device's primary context, so that a launch (inside a capture, say) finds it
  // there. Holds a lock while the driver works. Errors: kDeviceError, kOutOfMemory.
  Result<LoadedKernel> load(const std::shared_ptr<const Driver>& driver, int ordinal,
                            const std::shared_ptr<const KernelBuild>& build);

 private:
  struct Library {
    std::shared_ptr<const Driver> driver;
    std::shared_ptr<const KernelBuild> build;  // keeps the map's key alive
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    std::vector<CUkernel> companions;
    std::set<int> ready_on;  // ordinals
  };

  Result<Library*> library_of(const std::shared_ptr<const Driver>& driver,
                              const std::shared_ptr<const KernelBuild>& build);
  Result<CUcontext> context_of(const std::shared_ptr<const Driver>& driver, int ordinal);
  static Status make_ready(const Library& library, int ordinal, CUcontext primary);

  std::mutex mutex_;
  std::map<std::pair<const Driver*, const KernelBuild*>, Library> libraries_;
  std::map<std::pair<const Driver*, int>, PrimaryContext> contexts_;
};

}  // namespace octile
