// Collects the questions of a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/tuner/exploration.h"

namespace octile::tuner {

// Tasks, each once, in time that grows with their number.
class TaskList {
 public:
  // Adds a problem of dynamic tokens at each of the counts.
  void add(const Problem& problem, std::span<const std::int64_t> counts);
  bool empty() const { return tasks_.empty(); }
  // Returns the tasks, those first that take the device longest.
  std::vector<TuningTask> longest_first(const DeviceSpec& device) &&;

 private:
  std::vector<TuningTask> tasks_;
  std::unordered_map<std::string, std::unordered_set<std::int64_t>> known_;  // by problem
};

}  // namespace octile::tuner
