// The tasks of `octile tune`: problems at token counts.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/tuner/exploration.h"
#include "tools/models/workload.h"

namespace octile::tools {

// Returns the largest token count of each bucket of a plan up to 16384: 1, 2, 4, ... 128, 192, 256,
// ... 1024, 1280, ... 16384.
std::vector<std::int64_t> bucket_counts();

// Returns the problem at a token count. A count that the problem states is ignored.
tuner::TuningTask task_at(Problem problem, std::int64_t count);

// Returns the tasks of one problem. If the problem states its token count, that is the only one and
// `counts` must be empty. Otherwise `counts` are the token counts, or bucket_counts() if it is
// empty. Errors: kInvalidArgument for a count outside 1 to 2^31 - 1; those of check_supported and
// check_operands.
Result<std::vector<tuner::TuningTask>> tasks_of(const Problem& problem,
                                                const std::vector<std::int64_t>& counts);

}  // namespace octile::tools
