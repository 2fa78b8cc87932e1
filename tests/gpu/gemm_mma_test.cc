// GEMMs whose matrix unit is mma.sync, on a GPU whose own unit is another. ptxas makes FP8 mma.sync
// of that of FP16 there, so that indices, barriers, copies, scales and outputs are those of the
// cards that have the unit, and sums have 25 bits behind the point. Two texts of each kernel: with
// TMA, and Ada's own, which copies by cp.async and is launched in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "generator/core/sum_bits.h"
#include "generator/families.h"
#include "runtime/driver/stream.h"
#include "runtime/engine/unit_answers.h"
#include "runtime/prove/gemm/tolerance.h"
#include "tests/gpu/gemm_batch_case.h"
#include "tests/gpu/gemm_case.h"
#include "tests/gpu/gemm_group_case.h"
#include "tests/gpu/gemm_guarded_pages.h"
#include "tests/gpu/gemm_parts.h"
#include "tests/gpu/host_bits.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

using Sizes = std::vector<std::int32_t>;

class GemmOfMma : public GemmGuardedPages {
 protected:
  void act_as(DeviceSpec device) {
    if (IsSkipped()) return;
    device.units = {MatrixUnit::kMma};
    acting_.emplace(gpu(), device);
    ASSERT_EQ(coarsest_sums(gpu().device()).bits, 25);
  }
  void TearDown() override {
    acting_.reset();
    GemmGuardedPages::TearDown();
  }

  double c_of(const GemmProblem& problem, std::int64_t k) {
    return reference::tolerance_c(problem.promote, k, coarsest_sums(gpu().device()));
  }
  bool takes(const GemmConfig& config, const GemmProblem& problem) {
    EXPECT_EQ(config.unit, MatrixUnit::kMma);
    EXPECT_EQ(config.copies, gpu().device().has_tma ? Copies::kTma : Copies::kCpAsync);
    return refused_by(config, problem, kDynamic, gpu().device()) == nullptr;
  }
  // Compares random codes with FP64, and integers with the host.
  void compare_both(GemmCase& c, const GemmConfig& config) {
    c.run_config(config, gpu().stream());
    c.judge(c_of(c.problem(), c.shape().k));
    // Ranks of a split K are added in another order than the host's.
    if (config.splits == 1) expect_host_bits(gpu(), c, config);
  }
  // Runs body(variant, seed) for each, compiled before on all cores.
  template <typename Body>
  void for_each(std::vector<GemmVariant> variants, const Body& body) {
    std::erase_if(variants, [&](const GemmVariant& v) {
      return !check_supported(v.problem, gpu().device());
    });
    ASSERT_FALSE(variants.empty());
    compile_variants(variants);
    std::uint64_t seed = 60000;
    for (const GemmVariant& v : variants) {
      body(v, ++seed);
      if (HasFailure()) FAIL() << to_text(v.problem) << "\n" << to_text(v.config);
    }
    count_cases(variants.size(), 0);
  }
  std::vector<GemmVariant> dense() {
    std::vector<GemmVariant> all;
    for (const GemmConfig& config :
         covering_gemm_configs(splittable_gemm_problem(), gpu().device())) {
      all.push_back({GemmProblem(), config});
    }
    return all;
  }

  void covering_set() {
    for_each(dense(), [&](const GemmVariant& v, std::uint64_t seed) {
      const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
      for (const GemmShape shape : {GemmShape{1, 8, 16},
                                    {bm - 1, bn + 8, 1152},
                                    {2 * bm + 5, 3 * bn - 8, 400},
                                    {777, 520, 2048}}) {
        GemmCase c(gpu(), v.problem, shape, seed, {.a = 16, .b = 32, .d = 8});
        if (takes(v.config, c.problem())) compare_both(c, v.config);
      }
    });
  }

  // Returns the tiles of fewer than 64 rows, of all widths and stores.
  std::vector<GemmVariant> short_tiles_of(const char* text) {
    const auto problem = std::get<GemmProblem>(parse_problem(text).value());
    std::vector<GemmVariant> all;
    for (const GemmConfig& c : candidates(problem, kDynamic, gpu().device()).admitted) {
      if (c.block_m < 64 && c.ctas_per_sm == 1 && !c.pdl_early && c.splits <= 3)
        all.push_back({problem, c});
    }
    return all;
  }

  // Warps that share a tile's columns: scales, biases and sentries of columns, direct and staged
  // stores, splits of K, and ends of rows and columns in a tile.
  void short_tiles() {
    std::vector<GemmVariant> all;
    for (const char* text :
         {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=? n=7168 k=7168 a=e4m3:row b=e5m2:row d=fp32 acc=1 promote=none bias=bf16",
          "gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e4m3:1x128 d=bf16 acc=0 promote=64 "
          "bias=fp32 sentry=squares"}) {
      for (GemmVariant& v : short_tiles_of(text)) all.push_back(std::move(v));
    }
    ASSERT_GT(all.size(), 40U);
    for_each(all, [&](const GemmVariant& v, std::uint64_t seed) {
      const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
      for (const GemmShape shape : {GemmShape{1, 8, 16}, {bm + 3, 2 * bn - 8, 656}}) {
        GemmCase c(gpu(), v.problem, shape, seed, {.d = 8}, CodeMode::kQuantised, 3);
        if (takes(v.config, c.problem())) compare_both(c, v.config);
      }
    });
  }

  // MX, whose scales a warp of its own brings: tiles of every size.
  void mx() {
    std::vector<GemmVariant> all;
    for (const char* text :
         {"gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e5m2:1x32 d=bf16 acc=0 promote=32",
          "gemm m=? n=7168 k=7168 a=e5m2:1x32 b=e4m3:32x32 d=fp32 acc=1 promote=32 bias=fp32"}) {
      const auto problem = std::get<GemmProblem>(parse_problem(text).value());
      for (const GemmConfig& c : covering_gemm_configs(problem, gpu().device()))
        all.push_back({problem, c});
    }
    for_each(all, [&](const GemmVariant& v, std::uint64_t seed) {
      const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
      for (const GemmShape shape : {GemmShape{1, 8, 16}, {bm + 3, 2 * bn + 8, 656}}) {
        GemmCase c(gpu(), v.problem, shape, seed, {.d = 8}, CodeMode::kQuantised, 3);
        if (takes(v.config, c.problem())) compare_both(c, v.config);
      }
    });
  }

  // Every scaling, type of D, bias, sentry and interval; one token, and K that fills no block.
  void outputs() {
    for_each(covering_gemm_variants(gpu().device()), [&](const GemmVariant& v, std::uint64_t seed) {
      const std::int64_t bm = v.config.block_m, bn = v.config.block_n;
      // Sums of codes as a quantiser leaves them leave the range of fp16.
      const bool in_fp16 = v.problem.d.dtype == DType::kFP16;
      for (const GemmShape shape :
           {GemmShape{bm + 5, 2 * bn + 8, 656}, {1, 8, 16}, {2 * bm, bn, 1}}) {
        if (shape.k == 1 && !has_tokens_in_k(v.problem)) continue;
        GemmCase c(gpu(), v.problem, shape, seed, {.d = 8},
                   in_fp16 ? CodeMode::kAlternating : CodeMode::kQuantised, in_fp16 ? 0 : 3);
        if (takes(v.config, c.problem())) compare_both(c, v.config);
      }
    });
  }

  void groups() {
    for_each(covering_group_variants(gpu().device()), [&](const GemmVariant& v,
                                                          std::uint64_t seed) {
      const std::int32_t bm = v.config.block_m;
      GemmGroupCase c(gpu(), v.problem, Sizes{3, 0, bm + 5, 2 * bm - 1, 130, 1}, 400, 656, seed, 7);
      if (!takes(v.config, c.problem())) return;
      c.run_config(v.config, gpu().stream());
      c.judge();
      expect_host_bits(gpu(), c, v.config);
    });
  }

  void batches() {
    for_each(covering_batch_variants(gpu().device()),
             [&](const GemmVariant& v, std::uint64_t seed) {
               for (const BatchLayout layout : {BatchLayout::kPacked, BatchLayout::kSideBySide}) {
                 GemmBatchCase c(gpu(), v.problem, 5, v.config.block_m + 5, 264, 400, seed, layout);
                 if (!takes(v.config, c.problem())) continue;
                 c.run_config(v.config, gpu().stream());
                 c.judge();
                 if (layout == BatchLayout::kPacked) expect_host_bits(gpu(), c, v.config);
               }
             });
  }

  // Codes whose products span eleven decades, cancel, or are of one size.
  void codes_of_every_kind() {
    std::uint64_t seed = 61000;
    for (const int promote : {32, 64, 128}) {
      GemmProblem problem;
      problem.promote = promote;
      const GemmConfig config = default_config(problem, 512, gpu().device());
      for (const CodeMode mode :
           {CodeMode::kUniform, CodeMode::kOneHuge, CodeMode::kAllEqual, CodeMode::kAlternating}) {
        GemmCase c(gpu(), problem, {333, 520, 4096}, ++seed, {}, mode);
        c.run_config(config, gpu().stream());
        c.judge(c_of(problem, 4096));
      }
    }
  }

  void guarded_pages() {
    std::vector<GemmVariant> variants = covering_gemm_variants(gpu().device());
    for_each(variants, [&](const GemmVariant& v, std::uint64_t seed) {
      GemmCase c(gpu(), v.problem, {2 * v.config.block_m + 4, 2 * v.config.block_n + 8, 2032},
                 seed);
      if (!takes(v.config, c.problem())) return;
      for (const GuardedEnd end : kEnds) compare(c, v.config, end);
    });
    for_each(covering_group_variants(gpu().device()), [&](const GemmVariant& v,
                                                          std::uint64_t seed) {
      GemmGroupCase c(gpu(), v.problem, {700, 0, 64, 2 * v.config.block_m + 4}, 904, 2032, seed);
      if (!takes(v.config, c.problem())) return;
      for (const GuardedEnd end : kEnds) compare(c, v.config, end);
    });
  }

  void replays() {
    GemmCase c(gpu(), {}, {300, 2112, 7168}, 62000);
    const GemmConfig config = default_config(c.problem(), 300, gpu().device());
    c.run_config(config, gpu().stream());  // loads the kernel
    gpu().synchronize();
    const auto graph = Graph::capture(gpu().driver(), gpu().stream(), [&]() -> Status {
      c.run_config(config, gpu().stream());
      c.run_config(config, gpu().stream());
      return {};
    });
    ASSERT_TRUE(graph) << graph.error().message;
    for (int i = 0; i < 3; ++i) {
      c.poison_output();
      ASSERT_TRUE(graph->launch(gpu().stream()));
      c.judge(c_of(c.problem(), 7168));
    }
  }

  // A small case of some kernels, with tails and two turns of the ring.
  void sanitizer_cases() {
    std::vector<GemmVariant> some = dense();
    some.resize(std::min<std::size_t>(some.size(), 6));
    // Warps that share columns, by the direct and the staged store, and MX.
    for (const char* text :
         {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=0 promote=32"}) {
      std::vector<GemmVariant> tiles = short_tiles_of(text);
      for (std::size_t i = 0; i < tiles.size(); i += 5) some.push_back(tiles[i]);
    }
    for_each(some, [&](const GemmVariant& v, std::uint64_t seed) {
      const std::int64_t k = (2 * v.config.stages + 1) * v.config.splits * 128 + 16;
      GemmCase c(gpu(), v.problem, {v.config.block_m + 5, v.config.block_n + 8, k}, seed);
      c.run_config(v.config, gpu().stream());
      c.judge(c_of(c.problem(), k));
    });
    std::vector<GemmVariant> grouped = covering_group_variants(gpu().device());
    std::erase_if(grouped, [i = 0](const GemmVariant&) mutable { return i++ % 9 != 0; });
    for_each(grouped, [&](const GemmVariant& v, std::uint64_t seed) {
      GemmGroupCase c(gpu(), v.problem, Sizes{3, 0, v.config.block_m + 2, 140},
                      v.config.block_n + 8, (v.config.stages + 1) * 128 + 16, seed, 2);
      if (!takes(v.config, c.problem())) return;
      c.run_config(v.config, gpu().stream());
      c.judge();
    });
  }

  // The test that comes before the first GEMM on a card without a report passes.
  void known_answers() {
    const Target target{TargetKind::kLive, "cuda:0", gpu().device(), gpu().driver(), 0};
    ProofRun run(gpu().internals(), target, ProofRun::Earlier::kAreRepeated);
    const std::vector<UnitAnswer> answers = test_units(run, target);
    ASSERT_EQ(answers.size(), 1U);
    EXPECT_TRUE(answers[0].status) << answers[0].status.error().message;
    EXPECT_EQ(answers[0].sum_bits, 25);
  }

 private:
  std::optional<ActingDevice> acting_;
};

class GemmMma : public GemmOfMma {
 protected:
  void SetUp() override {
    GemmOfMma::SetUp();
    if (!IsSkipped()) act_as(gpu().device());
  }
};

class GemmAdaText : public GemmOfMma {
 protected:
  void SetUp() override {
    GemmOfMma::SetUp();
    if (IsSkipped()) return;
    act_as(*find_device("l40s"));
    ASSERT_FALSE(gpu().device().has_tma || gpu().device().has_pdl || gpu().device().has_clusters);
  }
};

TEST_F(GemmMma, CoveringSetIsRight) { covering_set(); }
TEST_F(GemmMma, TilesOfFewRowsAreRight) { short_tiles(); }
TEST_F(GemmMma, MxIsRight) { mx(); }
TEST_F(GemmMma, EveryOutputIsRight) { outputs(); }
TEST_F(GemmMma, EveryKindOfGroupsIsRight) { groups(); }
TEST_F(GemmMma, EveryKindOfBatchIsRight) { batches(); }
TEST_F(GemmMma, CodesOfEveryKind) { codes_of_every_kind(); }
TEST_F(GemmMma, GuardedPages) { guarded_pages(); }
TEST_F(GemmMma, CapturedAndReplayed) { replays(); }
TEST_F(GemmMma, SanitizerCases) { sanitizer_cases(); }
TEST_F(GemmMma, KnownAnswers) { known_answers(); }

TEST_F(GemmAdaText, CoveringSetIsRight) { covering_set(); }
TEST_F(GemmAdaText, TilesOfFewRowsAreRight) { short_tiles(); }
TEST_F(GemmAdaText, MxIsRight) { mx(); }
TEST_F(GemmAdaText, EveryOutputIsRight) { outputs(); }
TEST_F(GemmAdaText, EveryKindOfGroupsIsRight) { groups(); }
TEST_F(GemmAdaText, EveryKindOfBatchIsRight) { batches(); }
TEST_F(GemmAdaText, CodesOfEveryKind) { codes_of_every_kind(); }
TEST_F(GemmAdaText, GuardedPages) { guarded_pages(); }
TEST_F(GemmAdaText, CapturedAndReplayed) { replays(); }
TEST_F(GemmAdaText, SanitizerCases) { sanitizer_cases(); }
TEST_F(GemmAdaText, KnownAnswers) { known_answers(); }

// The probes of the known-answer test tell a unit of 13 bits from one of 25.
TEST_F(GpuTest, KnownAnswersReadOffTheBitsOfEachUnit) {
  const Target target{TargetKind::kLive, "cuda:0", gpu().device(), gpu().driver(), 0};
  ProofRun run(gpu().internals(), target, ProofRun::Earlier::kAreRepeated);
  for (const UnitAnswer& answer : test_units(run, target)) {
    EXPECT_TRUE(answer.status) << answer.status.error().message;
    EXPECT_EQ(answer.sum_bits, sum_bits(gpu().device(), answer.unit)) << name_of(answer.unit);
  }
}

}  // namespace
}  // namespace octile::tests
