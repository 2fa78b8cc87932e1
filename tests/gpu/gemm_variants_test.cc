// Every pair of configuration values, through the engine with an explicit configuration.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <optional>
#include <vector>

#include "generator/families.h"
#include "runtime/prove/gemm/tolerance.h"
#include "tests/gpu/gemm_case.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

class GemmVariants : public GpuTest {
 protected:
  static void SetUpTestSuite() {
    if (GpuSession::get() == nullptr) return;
    compile_configs(splittable_gemm_problem(),
                    covering_gemm_configs(splittable_gemm_problem(), GpuSession::get()->device()));
  }
};

TEST_F(GemmVariants, CoveringSetIsRight) {
  const GemmProblem problem;
  std::uint64_t seed = 7000;
  int cases = 0;
  int refused = 0;
  for (const GemmConfig& config :
       covering_gemm_configs(splittable_gemm_problem(), gpu().device())) {
    for (const GemmShape shape :
         {GemmShape{1, 8, 16}, GemmShape{77, 576, 1152}, GemmShape{300, 200, 7168},
          GemmShape{4097, 520, 400}, GemmShape{640, 2112, 2048}}) {
      GemmCase c(gpu(), problem, shape, ++seed, {.a = 16, .b = 32, .d = 8});
      if (refused_by(config, c.problem(), kDynamic, gpu().device()) != nullptr) {
        ++refused;  // more splits than K-blocks
        continue;
      }
      ++cases;
      c.run_config(config, gpu().stream());
      c.judge(reference::tolerance_c(128));
      if (HasFailure()) FAIL() << to_text(config);
    }
  }
  count_cases(static_cast<std::size_t>(cases), 0);
  std::printf("%d cases ran, %d are refused (more splits than K-blocks)\n", cases, refused);
  EXPECT_GT(cases, 4 * refused);
}

TEST_F(GemmVariants, ShorterPromotionIntervals) {
  for (const int promote : {32, 64}) {
    GemmProblem problem;
    problem.promote = promote;
    std::uint64_t seed = 8000;
    for (const GemmShape shape : {GemmShape{77, 576, 1152}, GemmShape{1000, 2112, 7168}}) {
      GemmCase c(gpu(), problem, shape, ++seed);
      c.run_config(default_config(problem, shape.m, gpu().device()), gpu().stream());
      c.judge(reference::tolerance_c(promote, c.shape().k));
    }
  }
}

// The bits of a case's D, to compare later results with.
class Bits {
 public:
  explicit Bits(GpuSession& gpu) : gpu_(gpu) {}

  // The first output is kept; how many bytes of a later one differ from it.
  std::uint64_t differences(GemmCase& c) {
    if (!first_) {
      first_.emplace(gpu_.allocate(c.d().bytes()));
      EXPECT_EQ((*gpu_.driver())
                    ->cuMemcpyDtoDAsync(first_->get(), c.d().get(), c.d().bytes(), gpu_.stream()),
                CUDA_SUCCESS);
      return 0;
    }
    DeviceBuffer found = gpu_.zeroed(8);
    const void* x = first_->pointer();
    const void* y = c.d().pointer();
    auto bytes = static_cast<std::int64_t>(c.d().bytes());
    void* counter = found.pointer();
    gpu_.launch("count_differences", 1024, 256, {&x, &y, &bytes, &counter});
    return gpu_.read_counter(found);
  }

 private:
  GpuSession& gpu_;
  std::optional<DeviceBuffer> first_;
};

// Tile, stages, raster, cluster and overlap are schedule, not numerics: the same bits from all that
// split K alike.
TEST_F(GemmVariants, ScheduleDoesNotChangeBits) {
  const GemmProblem problem;
  GemmCase c(gpu(), problem, {300, 520, 2100 / 16 * 16}, 9000);
  std::map<int, Bits> of_splits;
  for (const GemmConfig& config :
       covering_gemm_configs(splittable_gemm_problem(), gpu().device())) {
    c.poison_output();
    c.run_config(config, gpu().stream());
    Bits& bits = of_splits.try_emplace(config.splits, gpu()).first->second;
    ASSERT_EQ(bits.differences(c), 0U) << to_text(config);
  }
}

// 15 x 21 tiles, several a CTA, in bands of rows and columns whose last is narrower.
TEST_F(GemmVariants, EveryRasterIsRightToTheSameBits) {
  const GemmProblem problem;
  std::vector<GemmConfig> configs;
  for (const char* cluster : {"1x1", "2x1", "1x2"}) {
    for (const char* raster : {"8", "1", "4", "100", "1n", "4n", "8n", "100n"}) {
      const auto config = parse_gemm_config(
          fmt::format("tile=128x128x128 stages=4 wg=2 cluster={} raster={}", cluster, raster));
      ASSERT_TRUE(config);
      configs.push_back(*config);
    }
  }
  compile_configs(splittable_gemm_problem(), configs);
  GemmCase c(gpu(), problem, {1900, 2600, 272}, 9400);
  Bits bits(gpu());
  for (const GemmConfig& config : configs) {
    c.poison_output();
    c.run_config(config, gpu().stream());
    if (config.raster == Raster{}) c.judge(reference::tolerance_c(128));
    ASSERT_EQ(bits.differences(c), 0U) << to_text(config);
    if (HasFailure()) FAIL() << to_text(config);
  }
}

// Rounds of whole tiles and of tail tiles behind them, some of which CTAs take while others have a
// whole one: on 132 SMs 15 columns of whole tiles and 3 of tail tiles, 30 and 4, 19 and 2; and
// small GEMMs that are all tail tiles.
TEST_F(GemmVariants, TailTilesAreRightToTheSameBits) {
  const GemmProblem problem;
  const auto whole = parse_gemm_config("tile=192x128x128 stages=4 wg=3 raster=16n");
  const auto tail = parse_gemm_config("tile=192x128x128 stages=4 wg=3 raster=16n tail_n=64");
  ASSERT_TRUE(whole && tail);
  std::uint64_t seed = 9450;
  for (const GemmShape shape : {GemmShape{8192, 2112, 272},
                                {8192, 4096, 144},
                                {5000, 2560, 1168},
                                {193, 136, 656},
                                {77, 40, 16},
                                {300, 256, 128}}) {
    GemmCase c(gpu(), problem, shape, ++seed);
    Bits bits(gpu());
    for (const GemmConfig& config : {*whole, *tail}) {
      c.poison_output();
      c.run_config(config, gpu().stream());
      c.judge(reference::tolerance_c(128));
      ASSERT_EQ(bits.differences(c), 0U) << to_text(config);
      if (HasFailure()) FAIL() << to_text(config);
    }
  }
}

// For compute-sanitizer: one small case of every variant, a tail in every dimension and at least
// two turns of the ring.
TEST_F(GemmVariants, SanitizerCases) {
  const GemmProblem problem;
  std::uint64_t seed = 9500;
  for (const GemmConfig& config :
       covering_gemm_configs(splittable_gemm_problem(), gpu().device())) {
    // Turns of every rank's ring.
    const std::int64_t k = (2 * config.stages + 1) * config.splits * 128 + 16;
    GemmCase c(gpu(), problem, {config.block_m + 5, config.block_n + 8, k}, ++seed);
    c.run_config(config, gpu().stream());
    c.judge(reference::tolerance_c(128));
    if (HasFailure()) FAIL() << to_text(config);
  }
}

}  // namespace
}  // namespace octile::tests
