// The tasks of `octile tune`: problems at token counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/gemm/passes.h"
#include "runtime/tuner/exploration.h"

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

// Returns the tasks of the passes of a model's linear layers, GEMMs only, and of its experts on one
// of `ranks`, if these are given. `model` is a path or the name of a shipped model. If `counts` is
// empty, the token counts are those of the model. Errors name the model and the layer.
Result<std::vector<tuner::TuningTask>> tasks_of_model(const std::string& model,
                                                      const std::string& recipe,
                                                      const std::vector<Pass>& passes,
                                                      const std::vector<std::int64_t>& counts,
                                                      std::optional<std::int64_t> ranks);

// Returns each task once, in the order of its first occurrence.
std::vector<tuner::TuningTask> distinct(std::vector<tuner::TuningTask> tasks);

}  // namespace octile::tools
