// Quantising a flat range of a tensor on the host, bit for bit as the whole tensor would be.
#pragma once

#include "generator/core/error.h"
#include "generator/problem.h"
#include "runtime/families/quantize/reference.h"

namespace octile::reference {

// Raises args.shard_amax by the range (shard=amax), or writes the range's codes and the scales of
// the blocks it touches (shard=cast). Arguments were validated.
Status quantize_shard(const QuantizeProblem& problem, const QuantizeArgs& args, int threads);

}  // namespace octile::reference
