#include "tests/support/gemm_variants.h"

#include <array>
#include <tuple>

#include "generator/families.h"
#include "tests/support/coverage.h"

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

std::vector<GemmConfig> covering_gemm_configs(const GemmProblem& problem,
                                              const DeviceSpec& device) {
  return cover_features(candidates(problem, kDynamic, device).admitted, pairs_of);
}

}  // namespace octile::tests
