// Quantising groups of rows on the host: each as a tensor of its own, put where the grouped layout
// wants it.
#pragma once

#include "generator/core/error.h"
#include "generator/problem.h"
#include "runtime/families/quantize/reference.h"

namespace octile::reference {

// Arguments were validated, offsets or counts apart, which a caller keeps on the device: those out
// of order or beyond `rows` are refused here. Errors: kInvalidArgument.
Status quantize_groups(const QuantizeProblem& problem, const QuantizeArgs& args, int threads);

}  // namespace octile::reference
