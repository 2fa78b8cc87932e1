// Order statistics of timings. Outliers of times lie on one side, so no distribution is assumed.
#pragma once

#include <vector>

namespace octile {

// Return the quantile or median, linearly interpolated between neighbouring order statistics. q
// lies in [0, 1]; `values` must not be empty.
double quantile(std::vector<double> values, double q);
double median(std::vector<double> values);

struct Interval {
  double lo = 0, hi = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

// Returns the confidence interval of the median at 95 % or slightly more, by ranks. It lies between
// the order statistics outside which a Binomial(n, 1/2) count leaves 2.5 % on either side. Below
// six values no ranks reach 95 %, so the interval is the whole range. `values` must not be empty.
Interval median_interval(std::vector<double> values);

}  // namespace octile
