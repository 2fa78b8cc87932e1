// How a GEMM is launched on the fake device: the grid, and what is prefetched early.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cache/tuning_file.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/families/gemm/tile_order.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_device.h"
#include "tests/support/tuning_testing.h"

namespace octile::test {
namespace {

// 384 rows of kGemmText, launched with the configuration of a record.
class ConfiguredGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  }
  fake_cuda_launch launch(const std::string& config, std::uint32_t flags = OCTILE_RUN_DEFAULT) {
    const TempFolder folder;
    EXPECT_TRUE(cache::TuningFile(folder.path(), true)
                    .append(cache::testing::make_decision(kGemmText, kRows, config)));
    const LibraryHandle library(folder.path());
    const PlanHandle plan = make_plan(library, "cuda", kGemmText);
    EXPECT_EQ(octile_plan_prepare(plan.get(), kRows, kRows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
        << octile_last_error();
    EXPECT_EQ(describe(plan.get())["kernels"][0]["config"], config);
    octile_gemm_args args = operands.args(kRows);
    args.flags = flags;
    const std::size_t before = device.fake.launch_count();
    EXPECT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
    fake_cuda_launch result = {};
    EXPECT_EQ(device.fake.get_launch(before, &result), 1);
    return result;
  }
  std::int32_t early_stages(const std::string& config, std::uint32_t flags) {
    return gemm_args(launch(config, flags)).early_stages;
  }
  std::int32_t prefetched_stages(const std::string& config, std::uint32_t flags) {
    return gemm_args(launch(config, flags)).prefetched_stages;
  }

  static constexpr std::int64_t kRows = 384;
  FakeDevice device;
  GemmOperands operands;
};

// Three tiles side by side in clusters of two are two clusters in each row of tiles. A cluster
// without blocks of its own would run behind another, and the GEMM would take twice as long.
TEST_F(ConfiguredGemm, EveryClusterOfTilesHasItsBlocks) {
  const fake_cuda_launch shared = launch(
      "tile=128x96x128 stages=7 wg=2 cluster=1x2 unroll=2 inflight=2 raster=8 ctas=1 store=tma "
      "pdl=end promote=128 splits=1");
  EXPECT_EQ(shared.grid[0], 3U * 2 * 2);
  EXPECT_EQ(shared.cluster[0], 2U);
  const fake_cuda_launch split = launch(
      "tile=64x96x128 stages=4 wg=1 cluster=1x1 unroll=2 inflight=2 raster=8 ctas=1 store=direct "
      "pdl=end promote=128 splits=2");
  EXPECT_EQ(split.grid[0], 6U * 3 * 2);
}

// The number of resident CTAs determines which CTAs of a grid are idle, so all resident CTAs are
// launched.
TEST_F(ConfiguredGemm, TailTilesHaveTheWholeGrid) {
  const std::string whole =
      "tile=192x128x128 stages=4 wg=3 cluster=1x1 unroll=1 inflight=1 raster=8 ctas=1 store=tma "
      "pdl=end promote=128 splits=1";
  EXPECT_EQ(launch(whole).grid[0], 2U * 2);
  const fake_cuda_launch tail = launch(whole + " tail_n=64");
  EXPECT_EQ(tail.grid[0], 132U);
  const TileOrder order = gemm_args(tail).order;
  EXPECT_EQ(order.whole_across, 0) << "eight tail tiles take half a round";
  EXPECT_EQ(order.idle, 0);
}

TEST_F(ConfiguredGemm, EarlyWeightsLeaveRoomForTheActivations) {
  const std::string rest = " raster=8 ctas=1 store=tma pdl=early promote=128 splits=1";
  const std::string of_64_rows = "tile=64x64x128 stages=13 wg=1 cluster=1x1 unroll=4 inflight=2";
  EXPECT_EQ(early_stages(of_64_rows + rest, OCTILE_RUN_DEFAULT), 0);
  EXPECT_EQ(early_stages(of_64_rows + rest, OCTILE_RUN_B_READY), 10);
  EXPECT_EQ(prefetched_stages(of_64_rows + rest, OCTILE_RUN_DEFAULT), 10)
      << "asked into L2 where they may not be loaded yet";
  EXPECT_EQ(prefetched_stages(of_64_rows + rest, OCTILE_RUN_B_READY), 0);
  EXPECT_EQ(early_stages("tile=128x96x128 stages=7 wg=2 cluster=1x1 unroll=2 inflight=2" + rest,
                         OCTILE_RUN_B_READY),
            3);
  EXPECT_EQ(early_stages("tile=16x48x128 stages=16 wg=1 cluster=1x1 unroll=4 inflight=2" + rest,
                         OCTILE_RUN_B_READY),
            16);
  EXPECT_EQ(early_stages("tile=64x32x128 stages=16 wg=1 cluster=1x1 unroll=4 inflight=2" + rest,
                         OCTILE_RUN_B_READY),
            0)
      << "reads twice as much of A as of B";
  EXPECT_EQ(early_stages("tile=64x64x128 stages=13 wg=1 cluster=2x1 unroll=4 inflight=2" + rest,
                         OCTILE_RUN_B_READY),
            0)
      << "shares B";
  EXPECT_EQ(prefetched_stages("tile=64x64x128 stages=13 wg=1 cluster=1x1 unroll=4 inflight=2 "
                              "raster=8 ctas=1 store=tma pdl=end promote=128 splits=1",
                              OCTILE_RUN_DEFAULT),
            0)
      << "has no thread for it";
}

// Ada has no TMA and no programmatic launches. The kernel's argument says in the place of tensor
// maps where the operands are; the fake device computes the GEMM from it.
TEST(GemmLaunch, AdaTakesPlainMapsInOrder) {
  if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  constexpr std::int64_t kRows = 384;
  const FakeDevice device("l40s");
  GemmOperands operands;
  const TempFolder folder;
  const LibraryHandle library(folder.path());
  const PlanHandle plan = make_plan(library, "cuda", kGemmText);
  ASSERT_EQ(octile_plan_prepare(plan.get(), kRows, kRows, OCTILE_PREPARE_DEFAULT), OCTILE_OK)
      << octile_last_error();
  octile_gemm_args args = operands.args(kRows);
  const std::size_t before = device.fake.launch_count();
  ASSERT_EQ(octile_gemm_run(plan.get(), &args, nullptr), OCTILE_OK) << octile_last_error();
  fake_cuda_launch launch = {};
  ASSERT_EQ(device.fake.get_launch(before, &launch), 1);
  EXPECT_TRUE(std::string(launch.kernel).ends_with("_mma_cp_async")) << launch.kernel;
  EXPECT_EQ(launch.programmatic, 0);
  EXPECT_EQ(launch.cluster[0], 1U);
  EXPECT_EQ(launch.block[0] % 128, 64U) << "a copy warp and a scale warp beside the consumers";
  const GemmKernelArgs kernel = gemm_args(launch);
  const GemmPlainMap a = kernel.a_map.plain, b = kernel.b_map.plain;
  EXPECT_EQ(as_pointer(a.base), args.a);
  EXPECT_EQ(as_pointer(b.base), args.b);
  EXPECT_EQ(a.rows, kRows);
  EXPECT_EQ(b.rows, kernel.n);
  EXPECT_EQ(a.columns, kernel.k);
  EXPECT_EQ(b.columns, kernel.k);
  EXPECT_GE(a.row_bytes, kernel.k);
  EXPECT_EQ(a.row_bytes % 16, 0);
  EXPECT_GT(a.box_rows, 0);
  EXPECT_EQ(b.box_rows % 16, 0);
  EXPECT_EQ(encoded(kernel.d_map).magic, 0U) << "D is stored from registers";
}

}  // namespace
}  // namespace octile::test
