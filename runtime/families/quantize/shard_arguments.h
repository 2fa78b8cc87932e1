// Checks of the arguments of plans of a flat range, or of a whole tensor's scales.
#pragma once

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/families/quantize/complete.h"

namespace octile {

// Checks that the flat range lies within the tensor. Other plans have none.
Status check_shard_extent(const QuantizeProblem& problem, const QuantizeArguments& args);

// Checks the tensors of a plan that quantises a flat range and completes the call.
Status complete_shard(const QuantizeProblem& problem, const QuantizeArguments& args,
                      QuantizeCall& call);

// Checks the arrays of a plan that makes the scales of a whole tensor and completes the call.
Status complete_scales(const QuantizeProblem& problem, const QuantizeArguments& args,
                       QuantizeCall& call);

}  // namespace octile
