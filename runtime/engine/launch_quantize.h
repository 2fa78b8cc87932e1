// Launching the kernels of templates/quantize: one parameter, a grid along x; where a scale's block
// is longer than a tile, the kernel that finds the maxima goes before.
#pragma once

#include <cuda.h>

#include "generator/error.h"
#include "generator/quantize_config.h"
#include "octile/octile.h"
#include "runtime/driver/driver.h"

namespace octile {

// What is the same in every launch of one kernel.
struct QuantizeLaunch {
  CUkernel kernel = nullptr;
  CUkernel companion = nullptr;  // first pass or scale update; null where the problem has neither
  QuantizeConfig config;
  int sm_count = 0;
  int threads = 0;
};
QuantizeLaunch quantize_launch(const QuantizeProblem& problem, const QuantizeConfig& config,
                               int sm_count, CUkernel kernel, CUkernel companion);

// `args` were validated and every leading dimension is filled in. Nothing is launched where there
// is nothing to write. Errors: kInvalidArgument (more rows than a grid has blocks for),
// kDeviceError.
Status launch_quantize(const Driver& driver, const QuantizeLaunch& launch,
                       const QuantizeProblem& problem, const octile_quantize_args& args,
                       CUstream stream);

// Delayed scaling: new encode scales from the history of maxima. `args` were validated.
Status launch_scale_update(const Driver& driver, const QuantizeLaunch& launch,
                           const octile_scale_update_args& args, CUstream stream);

}  // namespace octile
