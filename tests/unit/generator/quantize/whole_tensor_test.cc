// Configurations in which the thread blocks of a cluster hold the whole tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/core/device_spec.h"
#include "generator/quantize/candidates.h"
#include "generator/quantize/config.h"
#include "generator/quantize/emit.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_name.h"
#include "runtime/engine/engine.h"

namespace octile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const DeviceSpec& h200() { return *find_device("h200"); }

QuantizeProblem tensor(std::int64_t cols = 7168) {
  QuantizeProblem p;
  p.cols = cols;
  p.q.granularity = Granularity::kPerTensor;
  return p;
}

QuantizeConfig held(int cluster) {
  return {.tile_rows = 4, .tile_cols = 256, .threads = 512, .blocks_per_sm = 1, .cluster = cluster};
}

std::string refusal(const QuantizeProblem& p, const QuantizeConfig& c) {
  const Status status = check_config(p, c, *find_device("h200"));
  return status ? "" : status.error().message;
}

TEST(QuantizeWholeTensor, TextAndNameSayTheCluster) {
  EXPECT_EQ(to_text(held(8)), "tile=4x256 threads=512 per_sm=1 cluster=8");
  EXPECT_EQ(parse_quantize_config(to_text(held(8))).value(), held(8));
  EXPECT_FALSE(parse_quantize_config("cluster=all"));
  EXPECT_THAT(kernel_name(tensor(), held(8)), HasSubstr("_t4x256_w16_occ1_cluster8"));
}

TEST(QuantizeWholeTensor, NeedsNoFirstPassAndOneClusterForAnyRows) {
  const QuantizeConfig shared_out{8, 256, 64, 12};
  EXPECT_THAT(companions_of(tensor(), held(8)), IsEmpty());
  EXPECT_THAT(companions_of(tensor(), shared_out), ElementsAre(Companion::kFirstPass));
  EXPECT_EQ(first_pass_of(tensor(), held(1)), FirstPass::kNone);
  EXPECT_EQ(grid_of(tensor(), held(8), 132).first_pass.pass, FirstPass::kNone);
  for (const std::int64_t rows : {1, 16, 5000}) {
    EXPECT_EQ(launch_blocks(tensor(), held(8), rows).value(), 8);
    EXPECT_EQ(launch_blocks(tensor(), held(1), rows).value(), 1);
  }
  EXPECT_EQ(launch_blocks(tensor(), held(8), 0).value(), 0);
  EXPECT_EQ(launch_blocks(tensor(0), held(8), 16).value(), 0);
}

// 28 units of 256 columns a row.
TEST(QuantizeWholeTensor, DefaultsHoldSmallTensors) {
  const auto text = [](std::int64_t rows) {
    return to_text(default_config(tensor(), rows, h200()));
  };
  EXPECT_EQ(text(1), "tile=2x256 threads=512 per_sm=1 cluster=1");
  EXPECT_EQ(text(2), "tile=2x256 threads=1024 per_sm=1 cluster=1");
  EXPECT_EQ(text(4), "tile=2x256 threads=256 per_sm=1 cluster=8");
  EXPECT_EQ(text(9), "tile=2x256 threads=512 per_sm=1 cluster=8");
  EXPECT_THAT(text(10), Not(HasSubstr("cluster")));
  EXPECT_THAT(text(kDynamic), Not(HasSubstr("cluster")));
  for (const std::int64_t rows : {1, 3, 9}) {
    EXPECT_EQ(candidates(tensor(), rows, h200()).admitted.front(),
              default_config(tensor(), rows, h200()));
  }
}

TEST(QuantizeWholeTensor, RefusalsSayWhatMayBeHeld) {
  EXPECT_EQ(refusal(tensor(), held(8)), "");
  for (const int cluster : {-1, 3, 16})
    EXPECT_THAT(refusal(tensor(), held(cluster)), HasSubstr("0, 1, 2, 4 and 8 are allowed"));
  QuantizeConfig wide = held(8);
  wide.tile_cols = 512;
  EXPECT_THAT(refusal(tensor(), wide),
              HasSubstr("tile columns is 512; the 256 columns a warp loads are allowed"));
  const auto changed = [](auto change) {
    QuantizeProblem p = tensor();
    change(p);
    return p;
  };
  for (const QuantizeProblem& p : {
           changed([](auto& p) { p.policy = ScalePolicy::kDelayed; }),
           changed([](auto& p) { p.q.granularity = Granularity::k1x128; }),
           changed([](auto& p) { p.output = QuantizeOutput::kBoth; }),
           changed([](auto& p) { p.source = "silu_mul"; }),
           changed([](auto& p) { p.grouping = Grouping::kContiguous; }),
           changed([](auto& p) { p.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32}; }),
       }) {
    EXPECT_FALSE(may_hold_tensor(p));
    EXPECT_THAT(refusal(p, held(8)), HasSubstr("cluster is 8; 0 is allowed"));
  }
}

TEST(QuantizeWholeTensor, EmittedSourceHasOneKernel) {
  const auto kernel = emit(tensor(), held(8), h200(), embedded_templates()).value();
  EXPECT_EQ(kernel.template_path, "quantize/whole_tensor.cu");
  EXPECT_THAT(kernel.companions, IsEmpty());
  EXPECT_THAT(kernel.source, HasSubstr("kClusterBlocks = 8"));
  EXPECT_THAT(kernel.source, Not(HasSubstr("tensor_amax")));
}

}  // namespace
}  // namespace octile
