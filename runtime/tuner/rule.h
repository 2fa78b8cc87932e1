// The rule by which one of a race's finalists serves. It prefers what is there already, and among
// equals the first, so that two searches of the same question agree although their times differ by
// noise.
#pragma once

#include <optional>
#include <span>

#include "runtime/measure/statistics.h"

namespace octile::tuner {

// The final's result for a candidate: its time over the fastest one's and the default's over its,
// both paired by block, as medians with their 95 % intervals.
struct Finalist {
  int candidate = 0;
  double over_best = 1;
  Interval over_best_interval{1, 1};
  double gain = 1;
  Interval gain_interval{1, 1};
};

// How far behind the fastest a candidate may be and still be chosen. All are relative.
struct Allowances {
  // The allowance of a configuration that a record of an earlier search chose for exactly this
  // question. Two races of the same configurations differ by up to 1.2 %, so that a lead below this
  // does not justify a change of kernels.
  double incumbent = 0.015;
  // The allowance of the default. Separate races of two configurations, each with a narrow
  // interval, put them 0.4 to 1.2 % apart, either way, and a raster gains as much.
  double standing_default = 0.01;
  // The allowance of any other. Closer candidates change places from search to search: two searches
  // of 32 problems differed in 7, by 0.1 to 0.6 % each.
  double tie = 0.005;

  // Returns the allowances of a race with this noise, below which nothing is told apart.
  Allowances at_least(double noise) const;
};

// Returns the place of the winner. The finalists are in the order of preference, the default first;
// `incumbent` is a candidate's number. The first of these holds:
//   the incumbent    if it is not certainly beyond its allowance, and not slower than the default
//   the default      if it is not certainly beyond its allowance
//   the first other  within the tie that certainly beats the default, and by more than the noise
//   the default
std::size_t place_of_winner(std::span<const Finalist> finalists, std::optional<int> incumbent,
                            const Allowances& allowances, double noise);

// Returns true if narrower intervals cannot make another finalist the winner. Where the incumbent
// and the default are within their allowances, either may serve.
bool is_settled(std::span<const Finalist> finalists, std::optional<int> incumbent,
                const Allowances& allowances);

}  // namespace octile::tuner
