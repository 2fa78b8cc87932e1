// Quantises a flat range of a tensor on the host, bit for bit as quantising the whole tensor would.
#pragma once

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference.h"

namespace octile::reference {

// Raises args.shard_amax by the range (shard=amax), or writes the range's codes and the scales of
// the blocks it touches (shard=cast). The caller has validated the arguments.
Status quantize_shard(const QuantizeProblem& problem, const QuantizeCall& args, int threads);

}  // namespace octile::reference
