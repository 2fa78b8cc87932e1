// How much faster than a decision the fastest of many more candidates is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/prove/gpu_bench.h"
#include "runtime/tuner/exploration.h"
#include "runtime/tuner/search.h"

namespace octile::tuner {

// Options choose the candidates that are timed beside a decision.
struct RegretOptions {
  // All admitted ones that the cost model puts within this factor of its best, at most so many, the
  // best of the model first. A family whose estimates only order candidates has all of them.
  double within = 1.25;
  int most = 320;
  std::uint64_t seed = 1;  // of the random operands
};

struct Regret {
  bool finished = false;  // false: time was up before the race ended
  std::string config;     // the decision's
  std::string fastest;
  double config_us = 0, fastest_us = 0;
  // The decision's time over the fastest one's, paired by block: the median and its 95 % interval.
  double over_fastest = 1;
  Interval over_fastest_interval{1, 1};
  std::size_t admitted = 0, listed = 0;  // candidates without their variants
  int timed = 0;                         // with variants
  std::vector<std::string> wrong;        // candidates with wrong results, and what was wrong
};

// Returns what the race of a search says of the decision, which is a candidate by that number.
// `name` returns a candidate's text.
Regret regret_of(const SearchResult& search, int decision,
                 const std::function<std::string(int)>& name);

// Returns the candidates as a search numbers them: the default, the decision, and the others.
Exploration listed_for_regret(const TuningTask& task, const DeviceSpec& device,
                              const KernelConfig& decision, const RegretOptions& options);

// Builds, verifies and races all of them. Errors: nothing more can be measured; kOutOfMemory if the
// operands find no place.
Result<Regret> measure_regret(TunerContext& context, const TuningTask& task,
                              const KernelConfig& decision, const Budget& budget,
                              const RegretOptions& options);

}  // namespace octile::tuner
