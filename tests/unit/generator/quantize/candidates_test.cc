// The search space of quantisers: what its constraints guarantee for every candidate, and what the
// estimate prefers.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "generator/families.h"
#include "generator/quantize/emit.h"
#include "generator/quantize/resources.h"
#include "runtime/engine/engine.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

const DeviceSpec& h200() { return *find_device("h200"); }

QuantizeProblem problem_of(const std::string& text) {
  return std::get<QuantizeProblem>(*parse_problem("quantize rows=? " + text));
}

const QuantizeProblem& rowwise() {
  static const QuantizeProblem problem = problem_of("cols=7168 x=bf16 q=e4m3:1x128 out=row");
  return problem;
}

TEST(QuantizeCandidates, EveryOneEmitsAndIsItsText) {
  std::size_t emitted = 0;
  for (const QuantizeProblem& problem : tests::covering_quantize_cells(7168)) {
    for (const std::int64_t rows : {1, 4096}) {
      for (const QuantizeConfig& c : candidates(problem, rows, h200()).admitted) {
        SCOPED_TRACE(to_text(Problem(problem)) + " / " + to_text(c));
        const auto again = parse_quantize_config(to_text(c));
        ASSERT_TRUE(again) << again.error().message;
        ASSERT_EQ(*again, c);
        ++emitted;
        const auto kernel = emit(problem, c, h200(), embedded_templates());
        ASSERT_TRUE(kernel) << kernel.error().message;
      }
    }
  }
  EXPECT_GT(emitted, 1000U);
}

TEST(QuantizeCandidates, TheDefaultIsFirstAndEachIsCountedOnce) {
  for (const QuantizeProblem& problem : tests::covering_quantize_cells(7168)) {
    for (const std::int64_t rows : {1, 128, 16384}) {
      SCOPED_TRACE(to_text(Problem(problem)));
      const QuantizeCandidates all = candidates(problem, rows, h200());
      ASSERT_EQ(all.admitted.front(), default_config(problem, rows, h200()));
      std::set<std::string> names;
      for (const QuantizeConfig& c : all.admitted) names.insert(kernel_name(problem, c));
      EXPECT_EQ(names.size(), all.admitted.size()) << "kernels are told apart by name";
      EXPECT_GE(names.size(), 4U) << "there is something to search";
      std::size_t counted = all.admitted.size();
      for (const Removal& removal : all.removed) counted += removal.count;
      EXPECT_EQ(counted, all.enumerated);
    }
  }
}

TEST(QuantizeCandidates, ConstraintsHoldOfEveryOneButTheDefault) {
  for (const char* text :
       {"cols=7168 x=bf16 q=e4m3:1x128 out=row", "cols=300 x=fp32 q=e4m3:128x128 out=both",
        "cols=65536 x=fp16 q=e5m2:row out=row", "cols=64 x=bf16 q=e4m3:tensor out=row"}) {
    const QuantizeProblem problem = problem_of(text);
    const auto admitted = candidates(problem, 5, h200()).admitted;
    for (std::size_t i = 1; i < admitted.size(); ++i) {
      const QuantizeConfig& c = admitted[i];
      SCOPED_TRACE(to_text(c));
      const int loads = resources_of(problem, c).vectors_per_thread;
      EXPECT_GE(65536 / (c.threads * c.blocks_per_sm), 32 + 4 * loads) << "registers of a thread";
      EXPECT_LE(c.blocks_per_sm, 32);
      EXPECT_GE(c.threads * c.blocks_per_sm * loads * 16, 16 * 1024) << "bytes in flight";
    }
  }
}

// Widths start at the narrowest, for any width of the default.
TEST(QuantizeCandidates, WarpsThatWorkAloneTryEveryWidth) {
  const auto admits = [](const QuantizeProblem& problem, std::int64_t rows,
                         const QuantizeConfig& c) {
    const auto admitted = candidates(problem, rows, h200()).admitted;
    return std::ranges::count(admitted, c) == 1;
  };
  for (const QuantizeConfig& c : {QuantizeConfig{8, 256, 64, 16}, QuantizeConfig{4, 256, 128, 8},
                                  QuantizeConfig{1, 256, 64, 16}, QuantizeConfig{2, 512, 64, 16},
                                  QuantizeConfig{1, 1024, 64, 16}}) {
    EXPECT_TRUE(admits(rowwise(), 128, c)) << to_text(c);
    EXPECT_TRUE(admits(rowwise(), 16384, c)) << to_text(c);
  }
  const QuantizeProblem shorter = problem_of("cols=7168 x=bf16 q=e4m3:1x32 out=row");
  EXPECT_TRUE(admits(shorter, 16384, {8, 256, 64, 12}));
  EXPECT_TRUE(admits(shorter, 16384, {1, 1024, 64, 12}));
  const QuantizeProblem fp32 = problem_of("cols=7168 x=fp32 q=e4m3:1x32 out=row");
  EXPECT_TRUE(admits(fp32, 16384, {4, 128, 64, 12}));
  EXPECT_TRUE(admits(fp32, 16384, {1, 1024, 64, 12}));
  const auto widened = std::get<QuantizeProblem>(
      *parse_problem("dequantize rows=? cols=7168 x=e4m3:1x128 q=bf16 out=row"));
  EXPECT_TRUE(admits(widened, 16384, {2, 256, 64, 16}));
  EXPECT_TRUE(admits(widened, 16384, {2, 1024, 64, 12}));
}

TEST(QuantizeCandidates, ConstraintsAreNamedAndEachRemovesSomething) {
  std::set<std::string_view> idle;
  for (const QuantizeConstraint& rule : quantize_constraints()) {
    EXPECT_FALSE(rule.reason.empty()) << rule.name;
    EXPECT_TRUE(idle.insert(rule.name).second) << rule.name;
  }
  for (const std::int64_t rows : {1, 4096}) {
    for (const Removal& removal : candidates(rowwise(), rows, h200()).removed)
      if (removal.count > 0) idle.erase(removal.name);
  }
  EXPECT_TRUE(idle.empty()) << *idle.begin();
}

// The floor is bytes over bandwidth, a launch and a latency.
TEST(QuantizeEstimate, IsNotBelowTheFloor) {
  for (const std::int64_t rows : {1, 128, 4096, 32768}) {
    const double floor = static_cast<double>(rows) * 7168 * 3 / 4.3e6;
    for (const QuantizeConfig& c : candidates(rowwise(), rows, h200()).admitted)
      EXPECT_GE(estimate_us(c, rowwise(), rows, h200()), floor) << to_text(c);
    EXPECT_LE(estimate_us(default_config(rowwise(), rows, h200()), rowwise(), rows, h200()),
              1.1 * floor + 10);
  }
}

TEST(QuantizeEstimate, PrefersSmallTilesWhereThereAreFew) {
  const QuantizeConfig large{8, 256, 64, 16};
  const QuantizeConfig small{1, 256, 128, 8};
  EXPECT_LT(estimate_us(small, rowwise(), 16, h200()), estimate_us(large, rowwise(), 16, h200()));
  EXPECT_LT(estimate_us(large, rowwise(), 16384, h200()),
            estimate_us(small, rowwise(), 16384, h200()));
}

}  // namespace
}  // namespace octile
