// For compute-sanitizer: one small case of every variant of the quantise family, with a tail in
// both dimensions. A suite of its own, so that no more is compiled:
//   compute-sanitizer --tool racecheck octile_gpu_suite --gtest_filter='*Sanitizer*'
#include <gtest/gtest.h>

#include <vector>

#include "generator/families.h"
#include "tests/gpu/quantize_gpu.h"

namespace octile {
namespace {

constexpr Placement kSmall{131, 300};

class QuantizeSanitizer : public QuantizeGpuFixture {
 protected:
  void compare_each(const std::vector<QuantizeProblem>& problems) {
    for_each_of(problems, [&](const QuantizeProblem& problem) {
      const Plan plan = make_plan(problem);
      ASSERT_NE(plan, nullptr);
      compare(plan.get(), problem, kSmall, Fill::kMixed);
    });
  }
};

TEST_F(QuantizeSanitizer, CoveringCells) {
  compare_each(tests::covering_quantize_cells(kSmall.cols));
}
TEST_F(QuantizeSanitizer, FusedCells) { compare_each(tests::fused_quantize_cells(kSmall.cols)); }
TEST_F(QuantizeSanitizer, RowMessages) { compare_each(tests::row_message_cells(kSmall.cols)); }

// A kind that no small case is by default.
TEST_F(QuantizeSanitizer, ComputedRows) {
  QuantizeProblem problem;
  problem.cols = 1030;
  problem.source = "gelu_tanh";
  compare_as({8, 256, 32, 1, false, true}, problem, {300, 1030}, {Fill::kMixed});
  problem.cols = 512;
  problem.source = "dsilu_mul";
  const Plan plan = make_plan(problem);
  ASSERT_NE(plan, nullptr);
  compare(plan.get(), problem, {131, 512}, Fill::kMixed);
}

TEST_F(QuantizeSanitizer, FewRows) {
  QuantizeProblem problem;
  problem.cols = 264;
  for (const QuantizeOutput output : {QuantizeOutput::kRowwise, QuantizeOutput::kBoth}) {
    problem.output = output;
    problem.q.granularity =
        output == QuantizeOutput::kBoth ? Granularity::k1x128 : Granularity::k128x128;
    for (const std::int64_t rows : {std::int64_t{5}, std::int64_t{77}}) {
      compare_as({16, 128, 128, 1}, problem, {rows, problem.cols}, {Fill::kMixed});
    }
  }
}

TEST_F(QuantizeSanitizer, WholeTensor) {
  QuantizeProblem problem;
  problem.q.granularity = Granularity::kPerTensor;
  for (const int cluster : {1, 4, 8}) {
    for (const std::int64_t cols : {std::int64_t{264}, std::int64_t{1030}}) {
      problem.cols = cols;
      compare_as({.tile_rows = 2,
                  .tile_cols = 256,
                  .threads = 128,
                  .blocks_per_sm = 1,
                  .cluster = cluster},
                 problem, {13, cols}, {Fill::kMixed});
    }
  }
}

TEST_F(QuantizeSanitizer, CopiesApart) {
  QuantizeProblem problem;
  problem.cols = 264;
  problem.output = QuantizeOutput::kBoth;
  for (const Granularity g : {Granularity::k1x128, Granularity::k128x128, Granularity::kPerRow}) {
    problem.q = {DType::kE4M3, g, ScaleFormat::kF32};
    for (const std::int64_t rows : {std::int64_t{5}, std::int64_t{77}}) {
      QuantizeConfig config = default_config(problem, rows, gpu().device());
      config.copies_apart = true;
      compare_as(config, problem, {rows, problem.cols}, {Fill::kMixed});
    }
  }
}

TEST_F(QuantizeSanitizer, HalvesWorkedTogether) {
  QuantizeProblem problem;
  problem.source = "dsilu_mul";
  problem.output = QuantizeOutput::kBoth;
  for (const Granularity g : {Granularity::kPerRow, Granularity::k1x128, Granularity::k128x128}) {
    problem.q = {DType::kE4M3, g, ScaleFormat::kF32};
    for (const tests::Placement& at : {tests::Placement{130, 512}, {65, 256, 1, 0, 1, 0, 0}}) {
      problem.cols = at.cols;
      const QuantizeConfig config = default_config(problem, kDynamic, gpu().device());
      ASSERT_TRUE(config.halves_together);
      compare_as(config, problem, at, {Fill::kMixed});
    }
  }
}

TEST_F(QuantizeSanitizer, OrderedScales) {
  QuantizeProblem problem;
  problem.cols = 1100;
  problem.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  problem.output = QuantizeOutput::kBoth;
  const tests::OrderedPlacement both{{1500, 1100, 0, 0, 0, 0, 12}, true, true};
  tests::expect_ordered(problem, both);
  compare_as({128, 128, 256, 3, false, false, true}, problem, both.at, {Fill::kMixed});
}

}  // namespace
}  // namespace octile
