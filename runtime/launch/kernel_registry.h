// The kernels that a library handle has loaded. Each is loaded once and made ready once per device.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "generator/core/error.h"
#include "runtime/driver/context.h"
#include "runtime/driver/driver.h"
#include "runtime/launch/kernel_build.h"
#include "runtime/launch/launch_kernel.h"

namespace octile {

struct LoadedKernel {
  KernelHandle kernel;
  std::vector<KernelHandle> companions;  // in the order of EmittedKernel
  CUcontext primary = nullptr;           // context of the device on which they are ready
};

// Why a kernel is not loaded. `of_kernel`: the driver refuses what the cubin holds, so that another
// cubin of the kernel may load.
struct LoadError : Error {
  bool of_kernel = false;
  CUresult result = CUDA_SUCCESS;  // the driver's; CUDA_SUCCESS: there is no context
};

class KernelRegistry {
 public:
  KernelRegistry() = default;
  ~KernelRegistry();  // unloads
  KernelRegistry(const KernelRegistry&) = delete;
  KernelRegistry& operator=(const KernelRegistry&) = delete;

  // Loads the kernel if this handle has not, raises its shared-memory limit on the device and puts
  // it into the device's primary context. Launches find it there, also inside a capture. Holds a
  // lock while the driver works. A kernel that cannot be loaded is unloaded. Errors: kDeviceError,
  // kOutOfMemory.
  tl::expected<LoadedKernel, LoadError> load(const std::shared_ptr<const Driver>& driver,
                                             int ordinal,
                                             const std::shared_ptr<const KernelBuild>& build);

 private:
  struct Library {
    std::shared_ptr<const Driver> driver;
    std::shared_ptr<const KernelBuild> build;  // keeps the map's key alive
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    std::vector<CUkernel> companions;
    std::map<int, LoadedKernel> ready_on;  // by ordinal
  };

  tl::expected<Library*, LoadError> library_of(const std::shared_ptr<const Driver>& driver,
                                               const std::shared_ptr<const KernelBuild>& build);
  Result<CUcontext> context_of(const std::shared_ptr<const Driver>& driver, int ordinal);
  static tl::expected<LoadedKernel, LoadError> make_ready(const Library& library, int ordinal,
                                                          CUcontext primary);

  std::mutex mutex_;
  std::map<std::pair<const Driver*, const KernelBuild*>, Library> libraries_;
  std::map<std::pair<const Driver*, int>, PrimaryContext> contexts_;
};

}  // namespace octile
