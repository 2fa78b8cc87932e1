// The search space of the GEMM: what its constraints promise of every candidate.
#include <gtest/gtest.h>

#include <set>

#include "generator/candidates.h"
#include "generator/cost_model.h"

namespace octile {
namespace {

const DeviceSpec& h200() { return *find_device("h200"); }

GemmProblem problem_of(std::int64_t n, std::int64_t k) {
  GemmProblem problem;
  problem.n = n;
  problem.k = k;
  return problem;
}

TEST(GemmCandidates, EveryConfigurationIsItsText) {
  for (const GemmConfig& c : gemm_candidates(problem_of(7168, 7168), h200()).admitted) {
    const auto again = parse_gemm_config(to_text(c));
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_EQ(*again, c) << to_text(c);
  }
}

TEST(GemmCandidates, KernelNamesTellConfigurationsApart) {
  const GemmProblem problem = problem_of(7168, 7168);
  std::set<std::string> names;
  const auto admitted = gemm_candidates(problem, h200()).admitted;
  for (const GemmConfig& c : admitted) names.insert(kernel_name(problem, c));
  EXPECT_EQ(names.size(), admitted.size());
}

TEST(GemmCandidates, EveryCandidateIsCountedOnce) {
  const GemmCandidates all = gemm_candidates(problem_of(7168, 7168), h200());
  std::size_t counted = all.admitted.size();
  for (const auto& [name, removed] : all.removed) counted += removed;
  EXPECT_EQ(counted, all.enumerated);
}

TEST(GemmCandidates, AnInvariantProblemIsNeverSplit) {
  GemmProblem problem = problem_of(2112, 7168);
  problem.invariant = true;
  for (const GemmConfig& c : gemm_candidates(problem, h200()).admitted) {
    ASSERT_EQ(c.splits, 1) << to_text(c);
  }
  EXPECT_GT(default_config(problem_of(2112, 7168), 64, h200()).splits, 1)
      << "the test shows nothing";
  for (std::int64_t m = 1; m <= 16384; m *= 2) {
    EXPECT_EQ(default_config(problem, m, h200()).splits, 1) << m;
  }
}

TEST(GemmCandidates, EverySplitHasAKBlockAndColumns) {
  for (const std::int64_t k : {0, 16, 128, 144, 384, 1024}) {
    for (const GemmConfig& c : gemm_candidates(problem_of(576, k), h200()).admitted) {
      ASSERT_TRUE(c.splits == 1 || c.splits * 128 < k + 128) << to_text(c) << " at k = " << k;
      ASSERT_LE(c.splits, c.block_n / 8) << to_text(c);
    }
  }
}

TEST(GemmCandidates, TwoCtasFitAnSm) {
  int seen = 0;
  for (const GemmConfig& c : gemm_candidates(problem_of(7168, 7168), h200()).admitted) {
    const GemmResources r = resources_of(c);
    ASSERT_LE(c.ctas_per_sm * (r.smem.total_bytes + 1024), h200().max_smem_per_block_bytes + 1024)
        << to_text(c);
    const int registers =
        128 * (c.consumer_warpgroups * r.consumer_registers + r.producer_registers);
    ASSERT_LE(c.ctas_per_sm * registers, h200().registers_per_sm) << to_text(c);
    seen += c.ctas_per_sm == 2;
  }
  EXPECT_GT(seen, 0);
}

TEST(GemmCandidates, ThreeConsumersArePickedWithoutCluster) {
  const GemmConfig pick = default_config(problem_of(7168, 2048), 8192, h200());
  EXPECT_EQ(pick.consumer_warpgroups, 3);
  EXPECT_EQ(cluster_size(pick), 1);
  EXPECT_EQ(pick.unroll, 1);
}

// A scale of B for each run of columns that lies in one block of 128 wherever the tile begins, in
// units of 16 bytes a stage.
TEST(GemmConfigs, AStageHoldsAScaleForEverySegmentOfColumns) {
  const auto stage_bytes = [](int block_n) {
    GemmConfig c;
    c.block_n = block_n;
    c.stages = 3;
    const GemmSmemLayout s = resources_of(c).smem;
    return (s.barrier_offset - s.scale_b_offset) / 3;
  };
  EXPECT_EQ(stage_bytes(64), 16);   // one
  EXPECT_EQ(stage_bytes(128), 16);  // one
  EXPECT_EQ(stage_bytes(256), 16);  // two of 128
  EXPECT_EQ(stage_bytes(96), 16);   // three of 32
  EXPECT_EQ(stage_bytes(160), 32);  // five of 32
  EXPECT_EQ(stage_bytes(112), 32);  // seven of 16
  EXPECT_EQ(stage_bytes(144), 48);  // nine of 16
}

// What cuOccupancyMaxActiveClusters said on an H200, which the grid must not fall short of by much.
TEST(GemmConfigs, ResidentClustersAreThoseOfTheGpu) {
  GemmConfig c;
  EXPECT_EQ(resident_clusters(c, 132), 132);
  c.cluster_n = 2;
  EXPECT_EQ(resident_clusters(c, 132), 66);
  c.cluster_n = 1;
  c.splits = 4;
  EXPECT_EQ(resident_clusters(c, 132), 30);
  c.splits = 8;
  EXPECT_EQ(resident_clusters(c, 132), 15);
  c.ctas_per_sm = 2;
  EXPECT_EQ(resident_clusters(c, 132), 30);
  EXPECT_EQ(resident_clusters(c, 1), 2) << "never none";
}

TEST(GemmConfigs, StagingHoldsTheTileOrTheGatheredSums) {
  GemmConfig c;
  c.block_m = 64;
  c.block_n = 96;
  c.consumer_warpgroups = 1;
  EXPECT_EQ(resources_of(c).smem.d_bytes, 64 * 96 * 2);
  c.store = EpilogueStore::kDirect;
  EXPECT_EQ(resources_of(c).smem.d_bytes, 0);
  c.splits = 8;  // 12 groups of 8 columns: shares of 1 or 2, room for 2
  EXPECT_EQ(resources_of(c).smem.d_bytes, 8 * 2 * 128 * 16);
  c.splits = 4;
  EXPECT_EQ(resources_of(c).smem.d_bytes, 64 * 96 * 4);
}

}  // namespace
}  // namespace octile
