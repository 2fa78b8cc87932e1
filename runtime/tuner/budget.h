// Seconds to spend, and how they are split over what is to be decided.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace octile::tuner {

using Clock = std::function<double()>;  // seconds; never goes back
Clock steady_clock();

class Budget {
 public:
  // `stopped`, where it is given, ends the budget at once when it answers true.
  Budget(Clock clock, double seconds, std::function<bool()> stopped = nullptr);

  double now() const { return clock_(); }
  double left() const;  // never below 0
  // Whether something that takes `seconds` ends in time.
  bool allows(double seconds) const { return seconds <= left(); }
  // Ends `seconds` from now, or with this one where that is earlier.
  Budget part(double seconds) const;

 private:
  Clock clock_;
  double end_;
  std::function<bool()> stopped_;
};

// Each decision gets of what is left the share its value has among those still to come: what one
// does not use flows on to the rest.
class Allotment {
 public:
  explicit Allotment(std::vector<double> values) : values_(std::move(values)) {}  // each > 0
  Budget share(const Budget& all, std::size_t decision) const;

 private:
  std::vector<double> values_;
};

// What deciding about a product of that many microseconds is worth, relative to others: its square
// root, halfway between "every decision alike" and "every microsecond alike". The first would spend
// on launch-bound products what the large ones need to be told apart; the second would leave
// decoding, whose products are all short, undecided. On top comes what compiling a dozen candidates
// costs whatever the product takes: without it products of 5 us got 0.3 s of 100 and stayed
// undecided (measured: 32 decisions, 16 cores). The first of a campaign compile most, as kernels of
// one serve the next: without more for them they were out of time at 15 of 48 candidates, while the
// campaign ended with 40 % of its budget unused. `place`: among those to decide, from 0.
double value_of(double default_us, std::size_t place);

}  // namespace octile::tuner
