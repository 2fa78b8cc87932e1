// Launching the kernels of templates/quantize: one parameter, a grid along x.
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
  QuantizeConfig config;
  int threads = 0;
  int smem_bytes = 0;
};
QuantizeLaunch quantize_launch(const QuantizeProblem& problem, const QuantizeConfig& config,
                               CUkernel kernel);

// `args` were validated and every leading dimension is filled in. Nothing is launched where there
// is nothing to write. Errors: kInvalidArgument (more rows than a grid has blocks for),
// kDeviceError.
Status launch_quantize(const Driver& driver, const QuantizeLaunch& launch,
                       const QuantizeProblem& problem, const octile_quantize_args& args,
                       CUstream stream);

}  // namespace octile
