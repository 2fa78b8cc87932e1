// Runs the text of emitted GEMM kernels on the host, thread by thread and cluster by cluster
// (cluster.h), and compares D bit for bit with the reference.
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "tests/emulation/emulation_test.h"
#include "tests/emulation/gemm_case.h"
#include "tests/support/coverage.h"
#include "tests/support/gemm_variants.h"

namespace octile {
namespace {

using emulation::EmittedGemmVariant;
using emulation::GemmCall;

using Values = std::vector<std::vector<int>>;

// Returns the value of each axis; two axes whose values belong together are one.
Values axes_of(const GemmConfig& c) {
  return {{c.block_m, c.consumer_warpgroups},
          {c.block_n},
          {c.cluster_m, c.cluster_n},
          {c.unroll, c.in_flight},
          {static_cast<int>(c.store)},
          {c.ctas_per_sm},
          {c.splits},
          {static_cast<int>(c.pdl_early)},
          {c.tail_n},
          {static_cast<int>(c.hold_scales)}};
}

TEST(GemmEmulationVariants, HaveEveryValueOfEveryAxis) {
  std::set<std::pair<std::size_t, std::vector<int>>> emulated;
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    const Values values = axes_of(v.config);
    for (std::size_t axis = 0; axis < values.size(); ++axis) emulated.insert({axis, values[axis]});
  }
  const GemmProblem problem = tests::splittable_gemm_problem();
  const GemmCandidates known = candidates(problem, kDynamic, *find_device("h200"));
  EXPECT_FALSE(known.admitted.empty());
  for (const GemmConfig& c : known.admitted) {
    const Values values = axes_of(c);
    for (std::size_t axis = 0; axis < values.size(); ++axis) {
      const auto [value, is_new] = emulated.insert({axis, values[axis]});
      EXPECT_FALSE(is_new) << "no emulated kernel has this value: " << to_text(c);
    }
  }
}

class GemmEmulation : public emulation::EmulationTest {
 protected:
  // Runs calls with schedules of their own.
  void expect_right(const EmittedGemmVariant& v, const std::vector<GemmCall>& calls,
                    int schedules = 3) {
    if (tests::runs_all_cases()) schedules *= 4;
    for (GemmCall call : calls) {
      for (int i = 0; i < schedules; ++i) {
        call.seed = ++seed_;
        EXPECT_EQ(emulation::run_gemm(v, call), "") << to_text(v.problem) << "\n"
                                                    << to_text(v.config) << "\n"
                                                    << to_text(call);
      }
    }
  }

 private:
  std::uint64_t seed_ = 0;
};

// Fewer rows than a tile or than four, columns that fill no tile, and K that fills no block.
TEST_F(GemmEmulation, LessThanATileEqualsTheReference) {
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    expect_right(v, {{1, 8, 16}, {bm - 3, bn, 128}, {bm, bn + 8, 5 * 128 + 16}, {7, bn - 8, 900}});
  }
}

// Several tiles for each thread block, whose last ones overlap or reach out of D, and tiles that
// touch several scale blocks of B.
TEST_F(GemmEmulation, ManyTilesEqualTheReference) {
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    expect_right(v, {{2 * bm + 5, 2 * bn + 8, 3 * 128},
                     {3 * bm + 2, 296, 1024 + 48, 2},
                     {3, 3 * bn + 24, 7 * 128},
                     {4 * bm + 1, 3 * bn, 2 * 128, 3}});
  }
}

// The scale warp's lanes hold the scales of 32 K-blocks.
TEST_F(GemmEmulation, LongSumsEqualTheReference) {
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    const std::int64_t blocks = 35 * v.config.splits;
    expect_right(v, {{5, v.config.block_n + 8, blocks * 128 - 64}}, 1);
  }
}

// A sentry sees what is not finite in D, and nothing else: neither rows and columns outside D nor
// the tests above fire it.
TEST_F(GemmEmulation, SentriesSeeAnInfinity) {
  int compared = 0;
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    if (!v.problem.sentry) continue;
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    expect_right(v, {{.m = bm + 5, .n = bn + 8, .k = 5 * 128 + 32, .poisoned = true},
                     {.m = 1, .n = 8, .k = 144, .poisoned = true}});
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// Any token count sums, and none leaves D alone, or gives it the bias.
TEST_F(GemmEmulation, AnyTokenCountEqualsTheReference) {
  int compared = 0;
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    if (v.problem.k != kDynamic && !v.problem.bias) continue;
    for (const std::int64_t k : {1, 77, 127, 129, 513}) expect_right(v, {{bm + 1, bn + 16, k}}, 1);
    if (v.problem.bias) expect_right(v, {{bm + 3, bn + 8, 0}, {5, 3 * bn, 0, 2}});
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// The weights are ready before the preceding kernel ends.
TEST_F(GemmEmulation, EarlyWeightsEqualTheReference) {
  int compared = 0;
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    if (!v.config.pdl_early) continue;
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    const bool kReady = true;
    expect_right(v, {{bm - 1, bn + 8, 16, 1, kReady},
                     {2 * bm, 2 * bn, 9 * 128, 1, kReady},
                     {bm + 9, 3 * bn - 8, 2 * 128 + 64, 2, kReady}});
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace octile
