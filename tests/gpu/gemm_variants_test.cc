// Every pair of configuration values, through the engine with an explicit configuration.
#include <gtest/gtest.h>

#include <map>

#include <cstdio>

#include "generator/candidates.h"
#include "generator/cost_model.h"
#include "runtime/reference/metrics.h"
#include "tests/gpu/gemm_case.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

class GemmVariants : public GpuTest {};

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
      if (refused_by(config, c.problem(), gpu().device()) != nullptr) {
        ++refused;  // more splits than K-blocks
        continue;
      }
      ++cases;
      c.run_config(config, gpu().stream());
      c.judge(reference::tolerance_c(128));
      if (HasFailure()) FAIL() << to_text(config);
    }
  }
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
      c.judge(reference::tolerance_c(promote));
    }
  }
}

// Tile, stages, raster, cluster and overlap are schedule, not numerics: the same bits from all that
// split K alike.
TEST_F(GemmVariants, ScheduleDoesNotChangeBits) {
  const GemmProblem problem;
  GemmCase c(gpu(), problem, {300, 520, 2100 / 16 * 16}, 9000);
  std::map<int, DeviceBuffer> first;  // by split count
  for (const GemmConfig& config :
       covering_gemm_configs(splittable_gemm_problem(), gpu().device())) {
    c.poison_output();
    c.run_config(config, gpu().stream());
    if (!first.contains(config.splits)) {
      DeviceBuffer& kept =
          first.emplace(config.splits, gpu().allocate(c.d().bytes())).first->second;
      ASSERT_EQ((*gpu().driver())
                    ->cuMemcpyDtoDAsync(kept.get(), c.d().get(), c.d().bytes(), gpu().stream()),
                CUDA_SUCCESS);
      continue;
    }
    DeviceBuffer differences = gpu().zeroed(8);
    const void* x = first.at(config.splits).pointer();
    const void* y = c.d().pointer();
    auto bytes = static_cast<std::int64_t>(c.d().bytes());
    void* counter = differences.pointer();
    gpu().launch("count_differences", 1024, 256, {&x, &y, &bytes, &counter});
    ASSERT_EQ(gpu().read_counter(differences), 0U) << to_text(config);
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
