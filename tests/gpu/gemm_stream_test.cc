// Stream-K: tiles cut along K, their pieces summed by several clusters. Few clusters, so that small
// products have tiles to cut.
#include <gtest/gtest.h>

#include <cstdio>

#include "generator/candidates.h"
#include "runtime/engine/launch_gemm.h"
#include "runtime/measure/timing.h"
#include "runtime/reference/metrics.h"
#include "tests/gpu/gemm_case.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

class GemmStream : public GpuTest {
 protected:
  // Of the covering set, those that cut.
  std::vector<GemmConfig> configs() {
    std::vector<GemmConfig> cutting;
    for (const GemmConfig& c : covering_gemm_configs(splittable_gemm_problem(), gpu().device()))
      if (c.stream_k) cutting.push_back(c);
    return cutting;
  }
  static bool cuts(const GemmConfig& c, const GemmShape& s, int clusters) {
    const std::int64_t rows = ceil_div(s.m, std::int64_t{c.block_m} * c.cluster_m);
    const std::int64_t cols = ceil_div(s.n, std::int64_t{c.block_n} * c.cluster_n);
    const auto cuttable = cuttable_tiles(rows, cols, c.raster_group, s.m % c.block_m != 0);
    return stream_order({}, rows * cols, cuttable, clusters, ceil_div(s.k, 128)).tiles > 0;
  }
  std::uint64_t differences(const DeviceBuffer& x, const DeviceBuffer& y) {
    DeviceBuffer count = gpu().zeroed(8);
    const void* p = x.pointer();
    const void* q = y.pointer();
    auto bytes = static_cast<std::int64_t>(x.bytes());
    void* counter = count.pointer();
    gpu().launch("count_differences", 1024, 256, {&p, &q, &bytes, &counter});
    return gpu().read_counter(count);
  }
  DeviceBuffer copy(const DeviceBuffer& from) {
    DeviceBuffer made = gpu().allocate(from.bytes());
    EXPECT_EQ(
        (*gpu().driver())->cuMemcpyDtoDAsync(made.get(), from.get(), from.bytes(), gpu().stream()),
        CUDA_SUCCESS);
    return made;
  }
};

TEST_F(GemmStream, EveryCutIsRight) {
  std::uint64_t seed = 11000;
  int cut = 0;
  for (const GemmConfig& config : configs()) {
    for (const GemmShape shape :
         {GemmShape{1536, 1096, 4112}, GemmShape{768, 2112, 4096}, GemmShape{6100, 392, 4112}}) {
      GemmCase c(gpu(), {}, shape, ++seed, {.a = 16, .b = 32, .d = 8});
      for (const int clusters : {1, 2, 3, 5, 7, 11, 13}) {
        if (!cuts(config, shape, clusters)) continue;
        ++cut;
        c.poison_output();
        c.run_config(config, gpu().stream(), clusters);
        c.judge(reference::tolerance_c(128));
        if (HasFailure()) FAIL() << to_text(config) << " on " << clusters << " clusters";
      }
    }
  }
  std::printf("%d products with cut tiles\n", cut);
  EXPECT_GT(cut, 20);
}

// All SMs, and token counts around whole waves.
TEST_F(GemmStream, AllClustersAtOnce) {
  std::uint64_t seed = 11500;
  for (const GemmConfig& config : configs()) {
    GemmCase c(gpu(), {}, {3072, 3000, 4096}, ++seed);
    c.run_config(config, gpu().stream());
    c.judge(reference::tolerance_c(128));
    if (HasFailure()) FAIL() << to_text(config);
  }
}

// Nothing depends on which piece is done first, nor on what the workspace held; a graph's launches
// have one number, and take each other's pieces for none of their own.
TEST_F(GemmStream, BitsAreTheSameEveryTimeAlsoReplayed) {
  int cut = 0;
  // The second's last rows of tiles overlap.
  for (const GemmShape shape : {GemmShape{1536, 1400, 4096}, GemmShape{6100, 392, 4096}}) {
    for (const GemmConfig& config : configs()) {
      GemmCase c(gpu(), {}, shape, 12000);
      for (const int clusters : {5, 7, 13}) {
        if (!cuts(config, shape, clusters)) continue;
        ++cut;
        c.run_config(config, gpu().stream(), clusters);
        const DeviceBuffer first = copy(c.d());
        DeviceBuffer workspace = c.poisoned_workspace(config);
        gpu().synchronize();
        auto graph = Graph::capture(gpu().driver(), gpu().stream(), [&]() -> Status {
          for (int i = 0; i < 3; ++i)
            c.launch_config(config, gpu().stream(), clusters, workspace.pointer());
          return {};
        });
        ASSERT_TRUE(graph) << graph.error().message;
        for (int i = 0; i < 3; ++i) {
          c.poison_output();
          ASSERT_TRUE(graph->launch(gpu().stream()));
          ASSERT_EQ(differences(first, c.d()), 0U) << to_text(config);
        }
      }
    }
  }
  EXPECT_GT(cut, 10);
}

TEST_F(GemmStream, WithoutAWorkspaceNoTileIsCut) {
  constexpr int kClusters = 7;
  for (GemmConfig config : configs()) {
    GemmCase c(gpu(), {}, {1536, 1400, 4096}, 12500);
    c.poison_output();
    c.launch_config(config, gpu().stream(), kClusters, nullptr);
    c.judge(reference::tolerance_c(128));
    const DeviceBuffer whole = copy(c.d());
    config.stream_k = false;
    c.poison_output();
    c.run_config(config, gpu().stream(), kClusters);
    ASSERT_EQ(differences(whole, c.d()), 0U) << to_text(config);
  }
}

// For compute-sanitizer.
TEST_F(GemmStream, SanitizerCases) {
  std::uint64_t seed = 13000;
  for (const GemmConfig& config : configs()) {
    GemmCase c(
        gpu(), {},
        {2 * config.block_m * config.cluster_m, 2 * config.block_n * config.cluster_n + 8, 4112},
        ++seed);
    c.run_config(config, gpu().stream(), 5);
    c.judge(reference::tolerance_c(128));
    if (HasFailure()) FAIL() << to_text(config);
  }
}

}  // namespace
}  // namespace octile::tests
