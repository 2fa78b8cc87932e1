// The interface of a search to a device and a compiler. Tests replace both.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "generator/core/error.h"
#include "runtime/measure/telemetry.h"

namespace octile::tuner {

struct BuildReport {
  int spill_bytes = 0;  // stored and loaded
  int stack_bytes = 0;
};

struct Verdict {
  bool right = true;
  std::string why;  // if it is wrong: what was wrong, with the numbers
  // If not empty, this candidate showed that the first one to be verified is wrong, and says how.
  // Every candidate that was verified since was compared with that one and must be verified again.
  std::string first_is_wrong;
};

// Candidates are numbered in the order of preference among those that measurements cannot tell
// apart; 0 is the default. If a method fails with an Error, nothing more can be measured (the
// device is lost).
class Bench {
 public:
  virtual ~Bench() = default;

  virtual int candidates() const = 0;
  // Returns the candidate that this one is a variant of. The two differ in nothing the ranking
  // knows. A variant takes part only if that candidate is among the fastest. Other candidates, for
  // which this is nullopt, always do.
  virtual std::optional<int> variant_of(int candidate) const = 0;
  virtual std::string name(int candidate) const = 0;  // its configuration, for sentences

  // Processes use a device in turns. Takes the device's turn, or keeps it; returns false if another
  // process has it at this moment. A search uses the device between these two calls.
  virtual bool take_device() = 0;
  virtual void give_device_back() = 0;

  // Has other threads compile the candidates that were not started before, in this order, and
  // returns at once.
  virtual void start_builds(std::span<const int> candidates) = 0;
  // Returns the report on a build that was started, or nullopt if it is not ready within `seconds`.
  // An Error means that this candidate cannot be compiled.
  virtual std::optional<Result<BuildReport>> build(int candidate, double seconds) = 0;

  // Runs a built candidate and checks samples of its output, and that it wrote all of that and
  // nothing else.
  virtual Result<Verdict> spot_check(int candidate) = 0;
  // Checks everything that a candidate wrote, which takes several times as long.
  virtual Result<Verdict> verify(int candidate) = 0;

  // Returns the microseconds per call of a candidate that passed the spot check, by one measurement
  // of some milliseconds.
  virtual Result<double> time(int candidate) = 0;

  // Returns the device's present state. If it says throttled, what was measured since the last call
  // is measured again.
  virtual DeviceTelemetry state() = 0;
};

}  // namespace octile::tuner
