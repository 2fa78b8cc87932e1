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

// Gives each decision a share of what is left, in proportion to its value among those still to
// come. Time that one decision does not use is left for the others.
class Allotment {
 public:
  explicit Allotment(std::vector<double> values) : values_(std::move(values)) {}  // each > 0
  Budget share(const Budget& all, std::size_t decision) const;

 private:
  std::vector<double> values_;
};

// Returns what a decision about a kernel of that many microseconds is worth, relative to others. It
// is the square root of the time, halfway between an equal share for every decision and a share in
// proportion to the time. Equal shares would spend on short kernels what long ones need to be told
// apart. Proportional shares would leave decoding undecided, whose kernels are all short. A
// constant for compiling a dozen candidates is added. Without it, kernels of 5 us got 0.3 s of 100
// and stayed undecided (32 decisions, 16 cores). The first decisions of a run get more of it,
// because kernels compiled for one serve the next. Without that, they were out of time at 15 of 48
// candidates, while the run ended with 40 % of its budget unused. `place`: the decision's number,
// from 0.
double value_of(double default_us, std::size_t place);

}  // namespace octile::tuner
