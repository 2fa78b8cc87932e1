// Seconds to spend, and how they are split over the decisions to make.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace octile::tuner {

using Clock = std::function<double()>;  // seconds; never goes back
Clock steady_clock();

class Budget {
 public:
  // If `stopped` is given, the budget ends as soon as it returns true.
  Budget(Clock clock, double seconds, std::function<bool()> stopped = nullptr);

  double now() const { return clock_(); }
  double left() const;  // never below 0
  // Returns true if work of that many seconds ends in time.
  bool allows(double seconds) const { return seconds <= left(); }
  // Returns a budget that ends `seconds` from now, or with this one if that is earlier.
  Budget part(double seconds) const;

 private:
  Clock clock_;
  double end_;
  std::function<bool()> stopped_;
};

// Asks again and again, at short intervals, until the answer is true. Returns false if the budget
// ends before that.
bool wait_until(const std::function<bool()>& answer, const Budget& budget);

// Adds the seconds of its life to a sum.
class Spell {
 public:
  // Both outlive it.
  Spell(const Budget& clock, double& sum) : clock_(clock), sum_(sum), began_(clock.now()) {}
  ~Spell() { sum_ += clock_.now() - began_; }
  Spell(const Spell&) = delete;
  Spell& operator=(const Spell&) = delete;

 private:
  const Budget& clock_;
  double& sum_;
  const double began_;
};

// Gives each decision the seconds that it needs. If more is left than all those still to come need,
// each gets as much more in proportion. If less is left, the first get theirs and the last nothing:
// a decision with half of its time is none. Time that one decision does not use is left for the
// others.
class Allotment {
 public:
  explicit Allotment(std::vector<double> needs);  // each > 0
  Budget share(const Budget& all, std::size_t decision) const;

 private:
  std::vector<double> needs_;
  std::vector<double> to_come_;  // the sum of the needs from each decision on
};

// The kernels that a decision has to compile and to time.
struct Effort {
  int candidates = 0;
  double us = 0;     // what a call takes at least
  int calls = 1;     // of one measurement at least
  double bytes = 0;  // that a call touches
  int compile_threads = 1;
};

// The seconds of a decision. In a run of several, kernels compile while others are timed.
struct NeededSeconds {
  double builds = 0, device = 0;
  double all() const { return builds + device; }
};

// Returns the seconds that a decision needs, from measured times of compiles and races.
NeededSeconds needed_seconds(const Effort& effort);

// Returns the seconds that a run of all of them takes, 0 without any: the first one's kernels
// compile before anything is timed.
double seconds_of_run(const std::vector<NeededSeconds>& needs);

}  // namespace octile::tuner
