// What a search needs of a device and a compiler, so that it can be tested without either.
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
  std::string why;  // where it is not: what was wrong, with the numbers
  // Not empty: this candidate showed that the first one to pass is wrong, and how. What passed
  // since was compared with that one: it is to be looked at again.
  std::string first_is_wrong;
};

// Candidates are numbered in the order they are preferred in where measurements cannot tell them
// apart; 0 is the default. A method that fails with an Error says that nothing more can be measured
// (the device is lost).
class Bench {
 public:
  virtual ~Bench() = default;

  virtual int candidates() const = 0;
  // The candidate that this one differs from in nothing the ranking knew of: it takes part where
  // that one turns out to be among the fastest. nullopt: it takes part anyway.
  virtual std::optional<int> variant_of(int candidate) const = 0;
  virtual std::string name(int candidate) const = 0;  // for sentences: its configuration

  // Has candidates compiled elsewhere, in this order, and returns at once.
  virtual void start_builds(std::span<const int> candidates) = 0;
  // Of one that was started. Waits for up to `seconds`; nullopt: not ready yet. An Error is the
  // candidate's alone: it cannot be compiled.
  virtual std::optional<Result<BuildReport>> build(int candidate, double seconds) = 0;

  // Runs a built candidate on fresh operands and looks at everything it wrote.
  virtual Result<Verdict> verify(int candidate) = 0;

  // Microseconds a call of a candidate that passed verification, by one measurement of some
  // milliseconds.
  virtual Result<double> time(int candidate) = 0;

  // Just now. Where it says throttled, what was measured since the last look is measured again.
  virtual DeviceTelemetry state() = 0;
};

}  // namespace octile::tuner
