// Launches of a kernel over a grid along x.
#pragma once

#include <cuda.h>

#include <array>

#include "runtime/driver/driver.h"

namespace octile {

// A kernel that is ready on one device.
struct KernelHandle {
  CUkernel anywhere = nullptr;      // in any context of the device
  CUfunction in_primary = nullptr;  // in its primary context
  // The kernel executes griddepcontrol.wait before it touches memory. It then keeps the stream's
  // order although its launch is programmatic, which takes the host 2.5 us instead of 3.0 (H200,
  // driver 580). Every kernel of a device that has the instruction does (DeviceSpec::has_pdl).
  bool waits_itself = false;
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

// Enqueues one launch; `parameters` has a pointer to each parameter, and `cluster` thread blocks
// form a cluster. Errors: as Driver::check.
inline Status launch(const LaunchSite& site, const KernelHandle& kernel, CUlaunchConfig config,
                     void** parameters, int cluster = 1) {
  std::array<CUlaunchAttribute, 2> attributes{};
  unsigned int count = 0;
  if (kernel.waits_itself) {
    CUlaunchAttribute& attribute = attributes[count++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    CUlaunchAttribute& attribute = attributes[count++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim.x = static_cast<unsigned int>(cluster);
    attribute.value.clusterDim.y = 1;
    attribute.value.clusterDim.z = 1;
  }
  config.attrs = attributes.data();
  config.numAttrs = count;
  return site.driver.check(
      site.driver->cuLaunchKernelEx(&config, site.function_of(kernel), parameters, nullptr),
      "cuLaunchKernelEx");
}

}  // namespace octile
