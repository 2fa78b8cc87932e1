#include "runtime/tuner/budget.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

namespace octile::tuner {

Clock steady_clock() {
  return [] {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now().time_since_epoch();
    return since.count();
  };
}

Budget::Budget(Clock clock, double seconds, std::function<bool()> stopped)
    : clock_(std::move(clock)), end_(clock_() + seconds), stopped_(std::move(stopped)) {}

double Budget::left() const {
  return stopped_ && stopped_() ? 0.0 : std::max(0.0, end_ - clock_());
}

Budget Budget::part(double seconds) const { return {clock_, std::min(seconds, left()), stopped_}; }

Budget Allotment::share(const Budget& all, std::size_t decision) const {
  const auto first = values_.begin() + static_cast<std::ptrdiff_t>(decision);
  const double to_come = std::accumulate(first, values_.end(), 0.0);
  return all.part(all.left() * *first / to_come);
}

double value_of(double default_us, std::size_t place) {
  constexpr double kCompiling = 15;  // as much as racing kernels of 225 us
  constexpr double kFirst = 5;       // the first decision's share beyond that of a later one
  const double compiling = kCompiling * (1 + kFirst / static_cast<double>(place + 1));
  return compiling + std::sqrt(std::max(default_us, 1.0));
}

}  // namespace octile::tuner
