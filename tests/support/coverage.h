// Which of a test's cases run. A test of many cases runs a covering part of them, and all of them
// if OCTILE_TESTS=all is set: `make check` sets it, and the GPU suite's --all.
#pragma once

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

namespace octile::tests {

// True if every case is to run.
bool runs_all_cases();
// True if a sweep that starts a process for each request that it refuses is to refuse many more
// than a covering part. A process takes ten times as long under a sanitizer, where a covering part
// runs in any case.
bool sweeps_densely();

// Returns cases that have every feature that any of the cases has, few of them, in their order.
// features_of(case) returns a vector of values that can be ordered. Greedy: each step takes the
// case with most features that no earlier step took, the first of them if several have as many.
template <typename Case, typename FeaturesOf>
std::vector<Case> cover_features(const std::vector<Case>& cases, const FeaturesOf& features_of) {
  using Features = decltype(features_of(cases.front()));
  std::vector<Features> features;
  std::set<typename Features::value_type> uncovered;
  for (const Case& c : cases) {
    features.push_back(features_of(c));
    uncovered.insert(features.back().begin(), features.back().end());
  }
  std::set<std::size_t> chosen;
  while (!uncovered.empty()) {
    std::size_t best = 0, best_gain = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      std::size_t gain = 0;
      for (const auto& f : features[i]) gain += uncovered.count(f);
      if (gain > best_gain) {
        best = i;
        best_gain = gain;
      }
    }
    for (const auto& f : features[best]) uncovered.erase(f);
    chosen.insert(best);
  }
  std::vector<Case> covering;
  for (const std::size_t i : chosen) covering.push_back(cases[i]);
  return covering;
}

}  // namespace octile::tests
