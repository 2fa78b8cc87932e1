// Launches of a kernel over a grid along x.
#pragma once

#include <cuda.h>

#include "runtime/driver/driver.h"

namespace octile {

inline CUlaunchConfig launch_config(unsigned blocks, unsigned threads, CUstream stream) {
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.gridDimY = 1;
  config.gridDimZ = 1;
  config.blockDimX = threads;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.hStream = stream;
  return config;
}

// Of a kernel that begins with griddepcontrol.wait: the stream's order is kept by it and not by the
// launch, which so takes the host 2.5 us instead of 3.0 (H200, driver 580).
inline CUlaunchAttribute waits_itself() {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// `parameters`: a pointer to each. Errors: as Driver::check.
inline Status launch(const Driver& driver, CUkernel kernel, const CUlaunchConfig& config,
                     void** parameters) {
  return driver.check(
      driver->cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), parameters, nullptr),
      "cuLaunchKernelEx");
}

inline Status launch_that_waits(const Driver& driver, CUkernel kernel, CUlaunchConfig config,
                                void** parameters) {
  CUlaunchAttribute attribute = waits_itself();
  config.attrs = &attribute;
  config.numAttrs = 1;
  return launch(driver, kernel, config, parameters);
}

}  // namespace octile
