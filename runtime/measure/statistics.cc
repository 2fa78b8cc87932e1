#include "runtime/measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace octile {

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

Interval median_interval(std::vector<double> values) {
  constexpr double kOutside = 0.025;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  // Finds the largest number of values that may be cut off at each end.
  double probability = std::pow(0.5, n);
  double below = probability;
  std::size_t cut = 0;
  while (below <= kOutside) {
    ++cut;
    probability *= (n - static_cast<double>(cut) + 1) / static_cast<double>(cut);
    below += probability;
  }
  const std::size_t first = cut == 0 ? 0 : cut - 1;
  return {values[first], values[values.size() - 1 - first]};
}

}  // namespace octile
