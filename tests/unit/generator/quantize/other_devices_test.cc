// The parts of a quantiser's text and tiles that other GPUs than Hopper's decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "generator/families.h"
#include "generator/quantize/emit.h"
#include "generator/quantize/residency.h"
#include "generator/quantize/tile_rules.h"
#include "runtime/engine/engine.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

QuantizeProblem quantizer(const char* fields) {
  return std::get<QuantizeProblem>(*parse_problem(std::string("quantize rows=? ") + fields));
}

std::string source_for(const char* device, const QuantizeProblem& p, std::int64_t rows) {
  const DeviceSpec& spec = *find_device(device);
  const auto kernel = emit(p, default_config(p, rows, spec), spec, embedded_templates());
  EXPECT_TRUE(kernel) << kernel.error().message;
  return kernel ? kernel->source : "";
}

TEST(QuantizeOtherDevices, AdasTextLaunchesInOrder) {
  const QuantizeProblem p = quantizer("cols=7168 x=bf16 q=e4m3:1x128 out=row src=silu_mul");
  const std::string ada = source_for("l40s", p, 65536);
  EXPECT_THAT(ada, Not(HasSubstr("griddepcontrol")));
  EXPECT_THAT(ada, HasSubstr("__vminu2"));
  for (const char* device : {"h200", "rtx5090", "b200", "b300"}) {
    const std::string text = source_for(device, p, 65536);
    EXPECT_THAT(text, HasSubstr("griddepcontrol.wait")) << device;
    EXPECT_THAT(text, Not(HasSubstr("__vminu2"))) << device;
  }
}

TEST(QuantizeOtherDevices, TwoKernelsServeSmallTensorsWithoutClusters) {
  const QuantizeProblem p = quantizer("cols=7168 x=bf16 q=e4m3:tensor out=row");
  EXPECT_EQ(default_config(p, 4, *find_device("h200")).cluster, 8);
  const DeviceSpec& ada = *find_device("l40s");
  const QuantizeConfig config = default_config(p, 4, ada);
  EXPECT_EQ(config.cluster, 0);
  EXPECT_EQ(first_pass_of(p, config), FirstPass::kTensor);
  QuantizeConfig clustered = config;
  clustered.cluster = 8;
  EXPECT_THAT(check_config(p, clustered, ada).error().message,
              HasSubstr("cluster is 8; 0 is allowed on a device without clusters"));
}

TEST(QuantizeOtherDevices, SharedMemoryBoundsResidency) {
  const QuantizeProblem p = quantizer("cols=7168 x=bf16 q=e4m3:128x128 out=col src=dsilu_mul");
  EXPECT_EQ(default_config(p, 16384, *find_device("h200")).blocks_per_sm, 2);
  EXPECT_EQ(default_config(p, 16384, *find_device("l40s")).blocks_per_sm, 1);
}

// Every row that takes blocks from a device meets a cell there, and Hopper has none.
TEST(QuantizeOtherDevices, TighterRowsServeCells) {
  std::set<const TighterRow*> used;
  for (const auto& cells : {tests::covering_quantize_cells(7168), tests::fused_quantize_cells(7168),
                            tests::grouped_source_cells(7168), tests::via_cells(7168),
                            tests::covering_layouts(tests::all_grouped_problems(7168))}) {
    for (const QuantizeProblem& p : cells) {
      EXPECT_EQ(tighter_of(TileCase(p, 16384, *find_device("h200")).values), nullptr);
      for (const char* device : {"l40s", "b200", "rtx5090"}) {
        used.insert(tighter_of(TileCase(p, 16384, *find_device(device)).values));
      }
    }
  }
  for (const TighterRow& row : tighter_rows()) EXPECT_TRUE(used.contains(&row)) << row.pattern;
  EXPECT_THAT(default_reason(quantizer("cols=7168 x=bf16 q=e4m3:1x128 out=col"), 16384,
                             *find_device("rtx5090")),
              HasSubstr("; a quarter fewer blocks: ptxas takes more registers"));
}

}  // namespace
}  // namespace octile
