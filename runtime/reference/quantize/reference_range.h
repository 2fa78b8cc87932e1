// The steps of a flat range of a tensor on the host. Their codes and scales have the bits of
// quantising the whole tensor.
#pragma once

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference.h"

namespace octile::reference {

// Runs a step of one piece: raises args.range_amax by the range (kAmax), makes the scales of the
// whole tensor of it (kScales; those of the transposed copy if it is given), or writes the range's
// codes (kCast). The problem is that of pieces.h for the piece, and the caller has validated the
// arguments.
Status quantize_range(const QuantizeProblem& problem, const QuantizeCall& args, int threads = 0);

// Runs a problem of operation "amax": raises args.amax to the largest finite |x|, and counts what
// is not finite. The caller has validated the arguments.
Status find_amax(const QuantizeProblem& problem, const QuantizeCall& args, int threads);

}  // namespace octile::reference
