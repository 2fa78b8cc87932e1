// The questions of a run of `octile tune`: problems at token counts, the heaviest of the model
// first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tuner/exploration.h"
#include "tools/models/workload.h"

namespace octile::tools {

struct Question {
  tuner::TuningTask task;
  std::string layer = {};   // the first layer that asks it; empty: no model does
  std::int64_t layers = 1;  // how many layers of the model ask it; 0: none while the model runs
};

// Returns the questions of the works, GEMMs and quantisers alike.
Result<std::vector<Question>> questions_of(const std::vector<Work>& works);
// Returns the tasks as questions of no model.
std::vector<Question> questions_of(std::vector<tuner::TuningTask> tasks);

// Returns each question once, in the order of its first occurrence, with the layers of all.
std::vector<Question> distinct(std::vector<Question> questions);

// Returns the microseconds that the cost model, or a family's defaults, expect of each.
std::vector<double> predicted_us(const std::vector<Question>& questions, const DeviceSpec& device);

// Returns the questions by weight, layers times predicted time, the heaviest first. Those
// that no layer asks while the model runs follow, the longest first.
std::vector<Question> by_weight(std::vector<Question> questions, const DeviceSpec& device);
// The same; `us` are the results of predicted_us() for them.
std::vector<Question> by_weight(std::vector<Question> questions, const std::vector<double>& us);

// Returns true if the questions are those of a model's layers.
bool are_of_layers(const std::vector<Question>& questions);

std::vector<tuner::TuningTask> tasks_of(const std::vector<Question>& questions);

}  // namespace octile::tools
