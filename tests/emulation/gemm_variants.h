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

// Returns the device that a configuration is emitted for and launched on: an H200 for WGMMA, an
// L40S if cp.async copies, else an RTX 5090.
inline const DeviceSpec& device_of(const GemmConfig& config) {
  return *find_device(config.copies == Copies::kCpAsync   ? "l40s"
                      : config.unit == MatrixUnit::kWgmma ? "h200"
                                                          : "rtx5090");
}

}  // namespace octile::emulation
