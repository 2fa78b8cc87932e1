// What a search says, for people and for the record file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/tuning_record.h"
#include "runtime/engine/kernel_build.h"
#include "runtime/tuner/exploration.h"
#include "runtime/tuner/search.h"

namespace octile::tuner {

// A candidate that gave wrong results, with all it takes to see that again.
struct WrongCandidate {
  std::string problem;
  std::int64_t tokens = 0;
  std::string config;
  std::uint64_t seed = 0;  // of the operands
  std::string why;
};
// One sentence.
std::string to_text(const WrongCandidate& wrong);

struct Decision {
  TuningTask task;
  Outcome outcome = Outcome::kOutOfTime;
  cache::TuningRecord record;  // complete where decided
  std::vector<WrongCandidate> wrong;
  int not_compiled = 0;
  int spilled = 0;
  double seconds = 0;

  bool decided() const { return outcome == Outcome::kTuned || outcome == Outcome::kDefaultStays; }
};

// Problem, bucket and device of a task as records have them.
cache::TuningRecord record_key(const TuningTask& task, const DeviceSpec& device);

// All but outcome-independent extras (baselines, protocol of the bench, toolchain and digest of the
// winner's kernel), which the caller knows.
Decision decision_of(const TuningTask& task, const DeviceSpec& device,
                     const Exploration& exploration, const SearchResult& search,
                     std::uint64_t seed);

}  // namespace octile::tuner
