// Quantise problem + configuration -> one self-contained CUDA source.
#pragma once

#include <string>

#include "generator/core/device_spec.h"
#include "generator/core/emitter.h"
#include "generator/core/error.h"
#include "generator/quantize/config.h"
#include "generator/quantize/problem.h"

namespace octile {

// The kernel takes one parameter, QuantizeKernelArgs by value, and launch_blocks() blocks along x.
// A kernel of pieces takes PiecesKernelArgs. Rows and columns are run-time arguments: one kernel
// serves every shape of its numerics. Errors: kUnsupported for numerics without a quantise
// template, kInvalidArgument for a configuration check_config refuses, kInternal for a template the
// set does not hold.
Result<EmittedKernel> emit(const QuantizeProblem&, const QuantizeConfig&, const DeviceSpec&,
                           TemplateSet);

// Changes of the source by shape and recipe, one "name = value  (why)" a line.
std::string explain(const QuantizeProblem&, const QuantizeConfig&, const DeviceSpec&);

}  // namespace octile
