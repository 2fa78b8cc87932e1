// Which tasks `octile tune` is asked: problems by token counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tuner/exploration.h"

namespace octile::tools {

// 1, 2, 4, ... 128, 192, 256, ... 1024, 1280, ... 16384: what every bucket of a plan is represented
// by.
std::vector<std::int64_t> bucket_counts();

// The problem at a token count, whatever it states.
tuner::TuningTask task_at(Problem problem, std::int64_t count);

// A problem whose token count (m, or rows) may be stated; then that is the only one, and `counts`
// must be empty. `counts` empty otherwise: bucket_counts(). Errors: kInvalidArgument for a count
// outside 1 to 2^31 - 1; what check_supported says of the problem, and check_operands of a
// quantiser.
Result<std::vector<tuner::TuningTask>> tasks_of(const Problem& problem,
                                                  const std::vector<std::int64_t>& counts);

// The forward products of a model's linear layers: the name of a shipped model, or a file.
Result<std::vector<tuner::TuningTask>> tasks_of_model(const std::string& model,
                                                        const std::string& recipe,
                                                        const std::vector<std::int64_t>& counts);

// Those of a file of problems (problem_file.h). `counts` are for the problems that state none.
Result<std::vector<tuner::TuningTask>> read_tasks(const std::string& path,
                                                    const std::string& recipe,
                                                    const std::vector<std::int64_t>& counts);

// Each once, in the order of its first.
std::vector<tuner::TuningTask> distinct(std::vector<tuner::TuningTask> tasks);

}  // namespace octile::tools
