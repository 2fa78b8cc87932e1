// Order statistics of timings: times have outliers to one side, so nothing here assumes a shape.
#pragma once

#include <vector>

namespace octile {

// Linear between neighbouring order statistics; q in [0, 1], `values` not empty.
double quantile(std::vector<double> values, double q);
double median(std::vector<double> values);

struct Interval {
  double lo = 0, hi = 0;
};

// Of the median, at 95 % or a little more, by ranks: between the order statistics that a
// Binomial(n, 1/2) count leaves 2.5 % outside on either side. Below six values no ranks reach 95 %:
// the whole range then. `values` not empty.
Interval median_interval(std::vector<double> values);

}  // namespace octile
