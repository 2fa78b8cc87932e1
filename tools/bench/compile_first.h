// Compiles the kernels of a benchmark before the first of them is timed.
#pragma once

#include <vector>

#include "tools/bench/measurement.h"
#include "tools/models/workload.h"

namespace octile::tools {

// Compiles into the cache, on all of the library's threads, what plans of the work will prepare one
// by one. Does nothing if a problem or a token count is refused, and leaves out what cannot be
// compiled: the plan's error says why.
void compile_first(const BenchContext& context, const std::vector<Work>& works);

}  // namespace octile::tools
