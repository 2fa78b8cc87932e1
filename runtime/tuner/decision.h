// The result of a search, for output and for the record file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/tuning_record.h"
#include "runtime/launch/kernel_build.h"
#include "runtime/tuner/exploration.h"
#include "runtime/tuner/search.h"

namespace octile::tuner {

// A candidate that gave wrong results, with everything needed to reproduce them.
struct WrongCandidate {
  std::string problem;
  std::int64_t tokens = 0;
  std::string config;
  std::uint64_t seed = 0;  // the operands'
  std::string why;
};
// Returns one sentence.
std::string to_text(const WrongCandidate& wrong);

// The seconds of a decision beside its search, by their use.
struct BesideSeconds {
  double operands = 0;    // exploring, and making the operands and what they are verified with
  double rivals = 0;      // making the other implementations
  double quantizers = 0;  // making and verifying the quantisers of a GEMM's operands
  double times = 0;       // timing both
};

struct Decision {
  TuningTask task;
  Outcome outcome = Outcome::kOutOfTime;
  cache::TuningRecord record;  // complete if decided
  std::vector<WrongCandidate> wrong;
  int not_compiled = 0;
  int spilled = 0;
  double seconds = 0;
  SearchSeconds searching;
  BesideSeconds beside;

  bool decided() const { return outcome == Outcome::kTuned || outcome == Outcome::kDefaultStays; }
};

// Returns a record with the problem, bucket and device of a task.
cache::TuningRecord record_key(const TuningTask& task, const DeviceSpec& device);

// Returns the decision without facts that only the caller knows: baselines, the bench's protocol,
// and toolchain and digest of the winner's kernel.
Decision decision_of(const TuningTask& task, const DeviceSpec& device,
                     const Exploration& exploration, const SearchResult& search,
                     std::uint64_t seed);

}  // namespace octile::tuner
