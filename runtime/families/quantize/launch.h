// Launching the kernels of templates/quantize: one parameter, a grid along x; the kernel that
// writes codes between those of its companions that a run needs before and after it.
#pragma once

#include <cuda.h>

#include <array>
#include <vector>

#include "generator/core/error.h"
#include "generator/quantize/config.h"
#include "octile/octile.h"
#include "runtime/engine/launch_kernel.h"

namespace octile {

// What is the same in every launch of one kernel.
struct QuantizeLaunch {
  KernelHandle kernel;
  std::array<KernelHandle, kCompanions> companions{};  // by Companion; null where there is none
  QuantizeConfig config;
  QuantizeWorkspace workspace;
  int sm_count = 0;
  int threads = 0;
  int smem_bytes = 0;  // dynamic
};
QuantizeLaunch quantize_launch(const QuantizeProblem& problem, const QuantizeConfig& config,
                               int sm_count, const KernelHandle& kernel,
                               const std::vector<KernelHandle>& companions);

// `args` were validated and every leading dimension is filled in. Nothing is launched where there
// is nothing to write. Errors: kInvalidArgument (more rows than a grid has blocks for),
// kDeviceError.
Status launch_quantize(const LaunchSite& site, const QuantizeLaunch& launch,
                       const QuantizeProblem& problem, const octile_quantize_args& args);

// Delayed scaling: new encode scales from the history of maxima. `args` were validated.
Status launch_scale_update(const LaunchSite& site, const QuantizeLaunch& launch,
                           const octile_scale_update_args& args);

}  // namespace octile
