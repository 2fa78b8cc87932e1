// The facts for a quantise kernel's launches, resolved once when the kernel is prepared.
#pragma once

#include <array>
#include <cstdint>

#include "generator/core/device_spec.h"
#include "generator/quantize/config.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/problem.h"
#include "runtime/launch/kernel_registry.h"

namespace octile {

// The part of a launch that a problem, a configuration and a device determine.
struct ResolvedQuantize {
  QuantizeProblem problem;
  KernelHandle kernel;
  std::array<KernelHandle, kCompanions> companions{};  // by Companion; null if there is none
  int threads = 0;
  int smem_bytes = 0;  // dynamic
  int cluster = 0;     // thread blocks of the one cluster, if there is one
  bool orders_scales = false;
  std::int64_t bias_blocks = 0;
  std::int64_t fingerprint_blocks = 0;  // at most
  QuantizeGrid grid;

  const KernelHandle& companion(Companion which) const {
    return companions[static_cast<std::size_t>(which)];
  }
  // Returns the bytes of workspace of a tensor, which each of stacked ones has.
  std::int64_t workspace_bytes(std::int64_t rows) const { return grid.workspace.bytes(rows); }
};

inline std::int64_t workspace_bytes(const QuantizeProblem& problem, const DeviceSpec& device,
                                    std::int64_t rows) {
  return workspace_of(problem, device.sm_count).bytes(rows);
}

ResolvedQuantize resolve(const QuantizeProblem& problem, const QuantizeConfig& config,
                         const DeviceSpec& device, const LoadedKernel& loaded);

}  // namespace octile
