// GEMMs that copy their operands by cp.async: which configurations there are, what they take of an
// SM, and what is emitted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <variant>

#include "generator/families.h"
#include "generator/gemm/candidates.h"
#include "generator/gemm/emit.h"
#include "runtime/engine/engine.h"

namespace octile {
namespace {

using ::testing::HasSubstr;

const DeviceSpec& l40s() { return *find_device("l40s"); }

GemmProblem problem_of(const char* text) { return std::get<GemmProblem>(*parse_problem(text)); }

const GemmProblem& dense() {
  static const GemmProblem problem =
      problem_of("gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  return problem;
}

GemmConfig config_of(const std::string& text) {
  return *parse_gemm_config(text + " store=direct unit=mma copies=cp_async");
}

std::string refusal(const std::string& text, const DeviceSpec& device = l40s()) {
  const GemmConstraint* rule = refused_by(*parse_gemm_config(text), dense(), 4096, device);
  return rule == nullptr ? "" : std::string(rule->name);
}

// A copy warp and a scale warp stand beside the consumers, and all threads have as many registers:
// ten warps have what twelve have, because a partition of an SM has three of either.
TEST(GemmCpAsync, AThreadBlockFillsASmallSm) {
  const GemmResources large = resources_of(dense(), config_of("tile=128x128x128 stages=3"), l40s());
  EXPECT_EQ(large.threads, 2 * 128 + 64);
  EXPECT_EQ(large.producer_registers, 0);
  EXPECT_EQ(large.consumer_registers, 168);
  EXPECT_EQ(large.smem.d_bytes, 0) << "D is stored from registers";
  EXPECT_EQ(large.smem.total_bytes, 99944);
  EXPECT_LE(large.smem.total_bytes, l40s().max_smem_per_block_bytes);
  const GemmResources small =
      resources_of(dense(), config_of("tile=16x32x128 stages=12 wg=1"), l40s());
  EXPECT_EQ(small.threads, 128 + 64);
  EXPECT_EQ(small.consumer_registers, 248);
  const GemmResources two =
      resources_of(dense(), config_of("tile=16x32x128 stages=6 wg=1 ctas=2"), l40s());
  EXPECT_EQ(two.consumer_registers, 128);
}

TEST(GemmCpAsync, WhatTmaAloneDoesIsRefused) {
  const std::string tile = "tile=64x64x128 stages=3 wg=1 ";
  EXPECT_EQ(refusal(tile + "store=direct unit=mma copies=cp_async"), "");
  EXPECT_EQ(refusal(tile + "store=direct unit=mma"), "device_has_instructions");
  EXPECT_EQ(refusal(tile + "store=direct copies=cp_async"), "device_has_instructions");
  EXPECT_EQ(refusal(tile + "store=tma unit=mma copies=cp_async"), "only_tma_stores_staged");
  EXPECT_EQ(refusal(tile + "store=direct pdl=early unit=mma copies=cp_async"), "lanes_copy_alone");
  EXPECT_EQ(refusal(tile + "store=direct splits=2 unit=mma copies=cp_async"), "lanes_copy_alone");
  const DeviceSpec& h200 = *find_device("h200");
  EXPECT_EQ(refusal(tile + "store=direct unit=mma copies=cp_async", h200), "");
  EXPECT_EQ(refusal(tile + "store=direct copies=cp_async", h200), "copies_suit_unit");
}

// Narrow tiles of few rows supply the thread blocks, because K is not split.
TEST(GemmCpAsync, CandidatesCopyByLanesAndSplitNothing) {
  std::set<std::pair<int, int>> tiles;
  for (const GemmConfig& c : candidates(dense(), 16, l40s()).admitted) {
    EXPECT_EQ(c.copies, Copies::kCpAsync);
    EXPECT_EQ(c.unit, MatrixUnit::kMma);
    EXPECT_EQ(c.store, EpilogueStore::kDirect);
    EXPECT_EQ(cluster_size(c), 1);
    tiles.insert({c.block_m, c.block_n});
  }
  EXPECT_TRUE(tiles.contains({16, 32}));
  EXPECT_TRUE(tiles.contains({128, 128}));
  for (const GemmConfig& c : candidates(dense(), 16, *find_device("rtx5090")).admitted)
    EXPECT_EQ(c.copies, Copies::kTma);
}

std::string source_of(const GemmProblem& problem, const std::string& config,
                      const DeviceSpec& device) {
  return emit(problem, config_of(config), device, embedded_templates()).value().source;
}

// Neither names of TMA's instructions nor those of other features that Ada lacks.
TEST(GemmCpAsync, TheSourceHasNoInstructionThatAdaLacks) {
  const std::string tile = "tile=64x64x128 stages=3 wg=1";
  for (const char* text :
       {"gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
        "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 batch=4",
        "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=fp32 acc=0 promote=128 "
        "group=contiguous groups=8"}) {
    const std::string source = source_of(problem_of(text), tile, l40s());
    for (const char* absent : {"cp.async.bulk", "tensormap", "griddepcontrol", "try_wait",
                               "arrive.expect_tx", "wgmma.mma_async"}) {
      EXPECT_FALSE(source.find(absent) != std::string::npos) << absent << " in " << text;
    }
    EXPECT_TRUE(source.find("cp.async.cg.shared.global") != std::string::npos) << text;
  }
  // The same kernel of a GPU whose launches are programmatic waits itself.
  EXPECT_TRUE(source_of(dense(), tile, *find_device("h200")).find("griddepcontrol.wait") !=
              std::string::npos);
}

// 16-bit elements go to memory in whole sectors. fp32 fills them without an exchange, and elements
// that are added to were read in halves of one.
TEST(GemmCpAsync, WideTilesOf16BitsAreStoredInSectors) {
  const auto stores = [](const char* d) {
    const std::string text = std::string("gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 ") + d;
    const std::string source =
        source_of(problem_of(text.c_str()), "tile=64x64x128 stages=3 wg=1", l40s());
    return source.find("#define OCTILE_OUTPUT gemm::output::Sectors<") != std::string::npos;
  };
  EXPECT_TRUE(stores("d=bf16 acc=0 promote=128"));
  EXPECT_TRUE(stores("d=fp16 acc=0 promote=128 sentry=squares"));
  EXPECT_FALSE(stores("d=bf16 acc=1 promote=128"));
  EXPECT_FALSE(stores("d=fp32 acc=0 promote=128"));
}

TEST(GemmCpAsync, TheMatrixSaysWhatHasNoKernel) {
  EXPECT_TRUE(check_supported(dense(), l40s()));
  const auto why = [](const char* text) {
    const Status status = check_supported(problem_of(text), l40s());
    return status ? std::string() : status.error().message;
  };
  EXPECT_THAT(why("gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 "
                  "promote=128"),
              HasSubstr("not built yet: FP8 D without TMA"));
  EXPECT_EQ(why("gemm m=? n=7168 k=2048 a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=0 promote=32"), "");
}

}  // namespace
}  // namespace octile
