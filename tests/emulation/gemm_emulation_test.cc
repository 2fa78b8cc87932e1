// Runs the text of emitted GEMM kernels on the host, thread by thread and cluster by cluster
// (cluster.h), and compares D bit for bit with the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
using emulation::EmulatedGemm;

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
          {static_cast<int>(c.hold_scales)},
          {static_cast<int>(c.mma_factors)}};
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

// Warps that multiply by themselves, in the same way.
TEST(GemmEmulationVariants, HaveEveryValueOfWarpsThatMultiply) {
  std::set<std::pair<std::size_t, std::vector<int>>> emulated;
  const auto values_of = [](const GemmConfig& c) {
    // Tiles of 16 and of 32 rows differ in the number of warps that have rows.
    return Values{{c.block_m, c.consumer_warpgroups},
                  {static_cast<int>(c.store)},
                  {c.ctas_per_sm},
                  {c.splits > 1 ? 2 : 1},
                  {static_cast<int>(c.pdl_early)},
                  {static_cast<int>(c.unit)}};
  };
  for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    if (v.config.unit == MatrixUnit::kWgmma) continue;
    const Values values = values_of(v.config);
    for (std::size_t axis = 0; axis < values.size(); ++axis) emulated.insert({axis, values[axis]});
  }
  const GemmCandidates known =
      candidates(tests::splittable_gemm_problem(), kDynamic, *find_device("rtx5090"));
  EXPECT_FALSE(known.admitted.empty());
  for (const GemmConfig& c : known.admitted) {
    const Values values = values_of(c);
    for (std::size_t axis = 0; axis < values.size(); ++axis) {
      const auto [value, is_new] = emulated.insert({axis, values[axis]});
      EXPECT_FALSE(is_new) << "no emulated kernel has this value: " << to_text(c);
    }
  }
}

// Returns the emitted kernels of one GEMM.
std::vector<EmittedGemmVariant> plain_variants() {
  std::vector<EmittedGemmVariant> variants = emulation::emitted_gemm_variants();
  std::erase_if(variants, [](const EmittedGemmVariant& v) { return has_several_gemms(v.problem); });
  return variants;
}

class GemmEmulation : public emulation::EmulationTest {
 protected:
  // Runs calls, each by `schedules` schedules of its own, or four times as many if all cases run.
  void expect_right(const EmittedGemmVariant& v, const std::vector<EmulatedGemm>& calls,
                    int schedules = tests::runs_all_cases() ? 3 : 1) {
    if (tests::runs_all_cases()) schedules *= 4;
    // A product of mma.sync costs more here than WGMMA's. Its kernels take turns with the calls.
    const bool takes_turns = v.config.unit != MatrixUnit::kWgmma && !tests::runs_all_cases();
    if (takes_turns) schedules = 1;
    for (EmulatedGemm call : calls) {
      if (takes_turns && turn_++ % 3 != 0) continue;
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
  int turn_ = 0;
};

// Fewer rows than a tile or than four, columns that fill no tile, and K that fills no block.
TEST_F(GemmEmulation, LessThanATileEqualsTheReference) {
  for (const EmittedGemmVariant& v : plain_variants()) {
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    expect_right(v, {{1, 8, 16}, {bm - 3, bn, 128}, {bm, bn + 8, 5 * 128 + 16}, {7, bn - 8, 900}});
  }
}

constexpr std::size_t kShapesOfManyTiles = 4;

// A shape, and which of `parts` parts of the variants.
struct ManyTilesCase {
  std::size_t shape, part = 0, parts = 1;
};

// All variants of the second shape take ten minutes.
std::vector<ManyTilesCase> many_tiles_cases() {
  std::vector<ManyTilesCase> cases;
  for (std::size_t shape = 0; shape < kShapesOfManyTiles; ++shape) {
    const std::size_t parts = shape == 1 && tests::runs_all_cases() ? 4 : 1;
    for (std::size_t part = 0; part < parts; ++part) cases.push_back({shape, part, parts});
  }
  return cases;
}

// Several tiles for each thread block, whose last ones overlap or reach out of D, and tiles that
// touch several scale blocks of B. Every variant has two of the shapes and one schedule of each, or
// all of them, with more rows in the longest.
class ManyTilesEmulation : public GemmEmulation,
                           public ::testing::WithParamInterface<ManyTilesCase> {};

TEST_P(ManyTilesEmulation, EqualTheReference) {
  const auto [number, part, parts] = GetParam();
  std::size_t turn = 0;
  for (const EmittedGemmVariant& v : plain_variants()) {
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    const std::int64_t rows = tests::runs_all_cases() ? 3 * bm + 2 : bm + 2;
    const std::array<EmulatedGemm, kShapesOfManyTiles> shapes{
        EmulatedGemm{2 * bm + 5, 2 * bn + 8, 3 * 128}, EmulatedGemm{rows, 296, 1024 + 48, 2},
        EmulatedGemm{3, 3 * bn + 24, 7 * 128}, EmulatedGemm{4 * bm + 1, 3 * bn, 2 * 128, 3}};
    const std::size_t of_pair = number < 2 ? turn % 2 : turn / 2 % 2;
    const bool in_part = turn++ % parts == part;
    if (in_part && (tests::runs_all_cases() || number % 2 == of_pair))
      expect_right(v, {shapes[number]});
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ManyTilesEmulation, ::testing::ValuesIn(many_tiles_cases()));

// The scale warp's lanes hold the scales of 32 K-blocks. Every second variant has a second tile, or
// all of them.
TEST_F(GemmEmulation, LongSumsEqualTheReference) {
  std::size_t turn = 0;
  for (const EmittedGemmVariant& v : plain_variants()) {
    const std::int64_t blocks = 35 * v.config.splits;
    const bool second = tests::runs_all_cases() || turn++ % 2 == 0;
    expect_right(v, {{5, v.config.block_n + (second ? 8 : 0), blocks * 128 - 64}}, 1);
  }
}

// A sentry sees what is not finite in D, and nothing else: neither rows and columns outside D nor
// the tests above fire it.
TEST_F(GemmEmulation, SentriesSeeAnInfinity) {
  int compared = 0;
  for (const EmittedGemmVariant& v : plain_variants()) {
    if (!has_sentry(v.problem)) continue;
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    expect_right(v, {{.m = bm + 5, .n = bn + 8, .k = 5 * 128 + 32, .poisoned = true},
                     {.m = 1, .n = 8, .k = 144, .poisoned = true}});
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// Any token count sums, and none leaves D alone, or gives it the bias or the scales of zeros.
TEST_F(GemmEmulation, AnyTokenCountEqualsTheReference) {
  int compared = 0;
  for (const EmittedGemmVariant& v : plain_variants()) {
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    const bool takes_empty_sums = v.problem.bias || is_fp8(v.problem.d.dtype);
    if (v.problem.k != kDynamic && !takes_empty_sums) continue;
    for (const std::int64_t k : {1, 77, 127, 129, 513}) expect_right(v, {{bm + 1, bn + 16, k}}, 1);
    if (takes_empty_sums) expect_right(v, {{bm + 3, bn + 8, 0}, {5, 3 * bn, 0, 2}});
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// E8M0 scales of any code: products beyond fp32's range, subnormal ones, and NaN, which reaches its
// row or columns and nothing else. Powers of two as small as a quantiser's.
TEST_F(GemmEmulation, AnyExponentEqualsTheReference) {
  int compared = 0;
  for (const EmittedGemmVariant& v : plain_variants()) {
    if (scheme_of(v.problem) != Scheme::kMx && !has_power_scales(v.problem) &&
        !has_scales_inside(v.problem))
      continue;
    const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
    expect_right(v, {{.m = bm + 5, .n = bn + 8, .k = 5 * 128 + 32, .special = true},
                     {.m = 3, .n = 2 * bn, .k = 32, .special = true},
                     {.m = 2 * bm, .n = bn - 8, .k = 260, .special = true}});
    for (const std::int64_t k : {1, 77, 127, 129}) expect_right(v, {{bm + 1, bn + 8, k}}, 1);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// The encode scale of a row whose sums are subnormal is the largest finite number, and so is its
// power of two.
TEST_F(GemmEmulation, FaintRowsEqualTheReference) {
  int compared = 0;
  for (const EmittedGemmVariant& v : plain_variants()) {
    if (!is_fp8(v.problem.d.dtype) || v.problem.bias) continue;
    expect_right(v,
                 {{.m = v.config.block_m + 5, .n = v.config.block_n + 16, .k = 96, .faint = true}});
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// The weights are ready before the preceding kernel ends.
TEST_F(GemmEmulation, EarlyWeightsEqualTheReference) {
  int compared = 0;
  for (const EmittedGemmVariant& v : plain_variants()) {
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

// Returns offsets or counts of groups of these sizes. Counts beyond the room of a group are
// allowed.
std::vector<std::int32_t> group_rows_of(const GemmProblem& problem,
                                        const std::vector<std::int32_t>& sizes,
                                        std::int32_t first) {
  if (problem.grouping == Grouping::kMasked) return sizes;
  std::vector<std::int32_t> offsets{first};
  for (const std::int32_t size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

// Returns a call whose groups have these sizes, with a few rows or tokens in no group.
EmulatedGemm group_call(const EmittedGemmVariant& v, const std::vector<std::int32_t>& sizes,
                        std::int64_t n, std::int64_t other, int clusters = 1) {
  const bool rows = groups_rows(v.problem);
  const bool masked = v.problem.grouping == Grouping::kMasked;
  EmulatedGemm call{.n = n, .clusters = clusters};
  call.group_rows = group_rows_of(v.problem, sizes, rows && !masked ? 3 : 0);
  const std::int64_t tokens =
      masked ? *std::ranges::max_element(sizes) + 5 : call.group_rows.back() + (rows ? 7 : 0);
  call.m = rows ? tokens : other;
  call.k = rows ? other : tokens;
  return call;
}

class GroupEmulation : public GemmEmulation {
 protected:
  template <typename Body>
  void for_each_variant(const Body& body) {
    int compared = 0;
    for (const EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
      if (!is_grouped(v.problem)) continue;
      body(v, static_cast<std::int32_t>(v.config.block_m), std::int64_t{v.config.block_n});
      ++compared;
    }
    EXPECT_GT(compared, 10);
  }
};

// Groups that are empty, have one row, end within a tile or with it, and one that has almost all.
// Those of several tiles have one schedule, unless all cases run.
TEST_F(GroupEmulation, EachEqualsTheReference) {
  for_each_variant([&](const EmittedGemmVariant& v, std::int32_t bm, std::int64_t bn) {
    expect_right(v,
                 {group_call(v, {5}, 8, 144), group_call(v, {0, 1, 0, 0, bm, 1, 0}, bn + 8, 300)});
    expect_right(v,
                 {group_call(v, {bm - 1, bm + 1, 3, 129}, 2 * bn + 8, 5 * 128, 2),
                  group_call(v, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, bn, 256, 3),
                  group_call(v, {2, 3 * bm + 5, 0, 1}, 3 * bn - 8, 400, 2)},
                 tests::runs_all_cases() ? 3 : 1);
  });
}

TEST_F(GroupEmulation, NoTokensAtAll) {
  for_each_variant([&](const EmittedGemmVariant& v, std::int32_t bm, std::int64_t bn) {
    EmulatedGemm call = group_call(v, {0, 0, 0}, bn + 8, bm + 1);
    (groups_rows(v.problem) ? call.m : call.k) = 9;
    expect_right(v, {call}, 1);
  });
}

// More groups than lanes of the warp that writes the table.
TEST_F(GroupEmulation, ManyGroups) {
  for_each_variant([&](const EmittedGemmVariant& v, std::int32_t, std::int64_t) {
    std::vector<std::int32_t> sizes(67);
    for (std::size_t g = 0; g < sizes.size(); ++g) sizes[g] = static_cast<std::int32_t>(g % 4);
    expect_right(v, {group_call(v, sizes, 16, 136, 4)}, 1);
  });
}

// Many tiles for each thread block, in groups of several tiles.
TEST_F(GroupEmulation, ManyTiles) {
  for_each_variant([&](const EmittedGemmVariant& v, std::int32_t bm, std::int64_t bn) {
    std::vector<std::int32_t> sizes(9);
    for (std::size_t g = 0; g < sizes.size(); ++g) {
      sizes[g] = bm / 2 + static_cast<std::int32_t>(g * 53 % 101) * bm / 50;
    }
    expect_right(v, {group_call(v, sizes, 2 * bn + 16, 3 * 128, 2)}, 1);
  });
}

// Offsets that descend, or lie outside the tensors: nothing outside them is touched, no thread
// waits for ever. Counts outside their range are clamped.
TEST_F(GroupEmulation, BrokenOffsetsStayInside) {
  for_each_variant([&](const EmittedGemmVariant& v, std::int32_t bm, std::int64_t bn) {
    const bool masked = v.problem.grouping == Grouping::kMasked;
    const std::int32_t far = 1 << 30;
    EmulatedGemm call = group_call(v, {3, 4, 5, bm}, bn + 8, 300);
    for (const std::vector<std::int32_t>& rows : std::vector<std::vector<std::int32_t>>{
             {-5, far, -far, 2, 1}, {far, 0, far, 0, far}, {9, 8, 7, 6, 5}}) {
      call.group_rows = rows;
      call.breaks_rules = !masked;
      expect_right(v, {call}, 1);
    }
  });
}

}  // namespace
}  // namespace octile
