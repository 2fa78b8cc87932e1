#include "tests/support/gemm_variants.h"

#include <array>
#include <set>
#include <tuple>

#include "generator/families.h"

namespace octile::tests {
namespace {

constexpr int kAxes = 11;
using Values = std::array<int, kAxes>;
using Pair = std::tuple<int, int, int, int>;  // axis, value, axis, value

Values values_of(const GemmConfig& c) {
  return {c.block_m,
          c.block_n,
          c.consumer_warpgroups,
          c.cluster_m,
          c.cluster_n,
          c.unroll,
          static_cast<int>(c.store),
          c.in_flight,
          c.ctas_per_sm,
          c.splits,
          c.tail_n};
}

std::vector<Pair> pairs_of(const GemmConfig& c) {
  const Values v = values_of(c);
  std::vector<Pair> pairs;
  for (int i = 0; i < kAxes; ++i) {
    for (int j = i + 1; j < kAxes; ++j) {
      pairs.emplace_back(i, v[static_cast<std::size_t>(i)], j, v[static_cast<std::size_t>(j)]);
    }
  }
  return pairs;
}

}  // namespace

GemmProblem splittable_gemm_problem() {
  GemmProblem problem;
  problem.n = 7168;
  problem.k = 7168;
  return problem;
}

// Chooses greedily: the candidate that covers the most uncovered pairs, or the first of equals.
std::vector<GemmConfig> covering_gemm_configs(const GemmProblem& problem,
                                              const DeviceSpec& device) {
  const std::vector<GemmConfig> all = candidates(problem, kDynamic, device).admitted;
  std::vector<std::vector<Pair>> pairs;
  std::set<Pair> uncovered;
  for (const GemmConfig& c : all) {
    pairs.push_back(pairs_of(c));
    uncovered.insert(pairs.back().begin(), pairs.back().end());
  }
  std::vector<GemmConfig> chosen;
  while (!uncovered.empty()) {
    std::size_t best = 0;
    std::size_t best_gain = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::size_t gain = 0;
      for (const Pair& p : pairs[i]) gain += uncovered.count(p);
      if (gain > best_gain) {
        best = i;
        best_gain = gain;
      }
    }
    for (const Pair& p : pairs[best]) uncovered.erase(p);
    chosen.push_back(all[best]);
  }
  return chosen;
}

}  // namespace octile::tests
