// Rows of codes and their scales, moved by an index.
#pragma once

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference.h"

namespace octile::reference {

// Runs a problem of operation "gather". The arguments have been checked.
Status gather(const QuantizeProblem& problem, const QuantizeCall& args, int threads);

}  // namespace octile::reference
