// Launches of a kernel over a grid along x.
#pragma once

#include <cuda.h>

#include "runtime/driver/driver.h"

namespace octile {

// A kernel that is ready on one device.
struct KernelHandle {
  CUkernel anywhere = nullptr;      // in any context of the device
  CUfunction in_primary = nullptr;  // in its primary context
};

// The driver, stream and context of a launch.
struct LaunchSite {
  const Driver& driver;
  CUstream stream = nullptr;
  bool in_primary = false;  // the device's primary context is current

  // A launch by CUfunction takes the host 0.1 us less than one by CUkernel (H200, driver 580).
  CUfunction function_of(const KernelHandle& kernel) const {
    return in_primary ? kernel.in_primary : reinterpret_cast<CUfunction>(kernel.anywhere);
  }
};

inline CUlaunchConfig launch_config(const LaunchSite& site, unsigned blocks, unsigned threads) {
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = 1;
  config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.hStream = site.stream;
  return config;
}

// The attribute of a kernel that executes griddepcontrol.wait before it touches memory. The kernel
// then keeps the stream's order, and the launch takes the host 2.5 us instead of 3.0 (H200, driver
// 580).
inline CUlaunchAttribute waits_itself() {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// The attribute of a kernel whose thread blocks form clusters of that many.
inline CUlaunchAttribute cluster_of(int blocks) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = static_cast<unsigned int>(blocks);
  attribute.value.clusterDim.y = 1;
  attribute.value.clusterDim.z = 1;
  return attribute;
}

// Enqueues one launch; `parameters` has a pointer to each parameter. Errors: as Driver::check.
inline Status launch(const LaunchSite& site, const KernelHandle& kernel,
                     const CUlaunchConfig& config, void** parameters) {
  return site.driver.check(
      site.driver->cuLaunchKernelEx(&config, site.function_of(kernel), parameters, nullptr),
      "cuLaunchKernelEx");
}

inline Status launch_that_waits(const LaunchSite& site, const KernelHandle& kernel,
                                CUlaunchConfig config, void** parameters) {
  CUlaunchAttribute attribute = waits_itself();
  config.attrs = &attribute;
  config.numAttrs = 1;
  return launch(site, kernel, config, parameters);
}

}  // namespace octile
