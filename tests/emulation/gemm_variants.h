// The GEMM kernels that the emulation runs. To add kernels, add a line to gemm_variants.cc.
#pragma once

#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile::emulation {

struct GemmVariant {
  GemmProblem problem;  // its n and k only serve to admit the configuration
  GemmConfig config;
};

std::vector<GemmVariant> gemm_variants();

// Returns the device that a configuration is emitted for and launched on: an L40S if it copies by
// cp.async, else an H200.
inline const DeviceSpec& device_of(const GemmConfig& config) {
  return *find_device(config.copies == Copies::kCpAsync ? "l40s" : "h200");
}

}  // namespace octile::emulation
