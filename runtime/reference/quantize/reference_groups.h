// Quantises groups of rows on the host: each group as a tensor of its own, written where the
// grouped layout places it.
#pragma once

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference.h"

namespace octile::reference {

// The caller has validated the arguments except offsets and counts, which users keep on the device.
// Offsets out of order, and offsets or counts beyond `rows`, are refused here. Errors:
// kInvalidArgument.
Status quantize_groups(const QuantizeProblem& problem, const QuantizeCall& args, int threads);

}  // namespace octile::reference
