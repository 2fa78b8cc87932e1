// A tuning run's knowledge from records: which winners are worth timing again, and which
// configuration is used for an undecided problem.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cache/tuning_set.h"
#include "runtime/engine/choice.h"
#include "runtime/tuner/exploration.h"

namespace octile::tuner {

class KnownRecords {
 public:
  // `loaded`: the records that the library serves from; null: none.
  explicit KnownRecords(std::shared_ptr<const cache::TuningSet> loaded = nullptr)
      : loaded_(std::move(loaded)) {}

  // Adds a decision of this run. It precedes the loaded ones, and the first for a problem and
  // bucket counts.
  void add(const cache::TuningRecord& record) { own_.add({record}, "this run"); }

  // Returns the winners to time for a task, each once, the likeliest first: those of its own
  // records, of the nearest token counts, of the fused projection or its parts, and of another
  // card. There are at most two of each kind. Configurations that the problem does not admit are
  // left out.
  std::vector<KernelConfig> winners(const TuningTask& task, const DeviceSpec& device) const;

  // Returns what a loaded record chose for exactly this task. It is among the winners.
  std::optional<KernelConfig> incumbent(const TuningTask& task, const DeviceSpec& device) const;

  // Returns what serves the task. Records of this run precede the loaded ones of the same match.
  Choice choose(const TuningTask& task, const DeviceSpec& device) const;

 private:
  cache::TuningSet own_;
  std::shared_ptr<const cache::TuningSet> loaded_;
};

}  // namespace octile::tuner
