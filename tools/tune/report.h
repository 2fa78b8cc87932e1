// What `octile tune` says of tasks and decisions.
#pragma once

#include <string>
#include <vector>

#include "runtime/tuner/run.h"
#include "tools/common/handles.h"

namespace octile::tools {

Json to_json(const tuner::Decision& decision);
Json to_json(const tuner::TuningTask& task, const tuner::Exploration& exploration);

// How many candidates each constraint removed, then the shortlist with what the model says of it.
std::string explanation_text(const tuner::TuningTask& task,
                             const tuner::Exploration& exploration);

// One line a decision: default, tuned, gain, share of the floor, cuBLASLt and bf16 beside it.
std::string decisions_table(const std::vector<tuner::Decision>& decisions);

}  // namespace octile::tools
