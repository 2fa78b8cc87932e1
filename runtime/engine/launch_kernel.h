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

// `parameters`: a pointer to each. Errors: as Driver::check.
inline Status launch(const Driver& driver, CUkernel kernel, const CUlaunchConfig& config,
                     void** parameters) {
  return driver.check(
      driver->cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), parameters, nullptr),
      "cuLaunchKernelEx");
}

}  // namespace octile
