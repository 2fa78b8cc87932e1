// The device that an emulated GEMM kernel is emitted for and launched on.
#pragma once

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"

namespace octile::emulation {

// Returns an H200 for WGMMA, a B200 for tcgen05, an L40S if cp.async copies, else an RTX 5090.
inline const DeviceSpec& device_of(const GemmConfig& config) {
  return *find_device(config.copies == Copies::kCpAsync     ? "l40s"
                      : config.unit == MatrixUnit::kWgmma   ? "h200"
                      : config.unit == MatrixUnit::kTcgen05 ? "b200"
                                                            : "rtx5090");
}

}  // namespace octile::emulation
