#include "generator/quantize/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/core/device_spec.h"
#include "generator/families.h"
#include "generator/quantize/emit.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_name.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/workspace.h"
#include "runtime/engine/engine.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

QuantizeProblem problem_of(Granularity granularity, std::int64_t cols = 7168) {
  QuantizeProblem p;
  p.cols = cols;
  p.q.granularity = granularity;
  return p;
}

std::string refusal(const QuantizeProblem& p, const QuantizeConfig& c) {
  const Status status = check_config(p, c, *find_device("h200"));
  return status ? "" : status.error().message;
}

TEST(QuantizeConfig, TextRoundTripsAndLeavesDefaults) {
  const QuantizeConfig config{4, 512, 128, 8};
  EXPECT_EQ(to_text(config), "tile=4x512 threads=128 per_sm=8");
  EXPECT_EQ(parse_quantize_config(to_text(config)).value(), config);
  EXPECT_EQ(parse_quantize_config("").value(), QuantizeConfig{});
  EXPECT_EQ(parse_quantize_config("per_sm=2").value(), (QuantizeConfig{8, 256, 256, 2}));
  const QuantizeConfig down{128, 128, 256, 3, true};
  EXPECT_EQ(to_text(down), "tile=128x128 threads=256 per_sm=3 raster=rows");
  EXPECT_EQ(parse_quantize_config(to_text(down)).value(), down);
  EXPECT_EQ(parse_quantize_config("raster=cols").value(), QuantizeConfig{});
}

TEST(QuantizeConfig, MalformedTextNamesTheField) {
  for (const char* text :
       {"tile=8", "tile=8x", "tile=8x256x1", "threads=many", "stages=3", "raster=up", "x"}) {
    const auto parsed = parse_quantize_config(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr(text));
  }
}

TEST(QuantizeConfig, RefusalsNameFieldAndValue) {
  const QuantizeProblem row = problem_of(Granularity::k1x128);
  const QuantizeProblem square = problem_of(Granularity::k128x128);
  EXPECT_EQ(refusal(row, {8, 256, 256, 4}), "");
  EXPECT_EQ(refusal(square, {128, 128, 256, 4}), "");
  EXPECT_THAT(refusal(row, {8, 256, 96, 4}), HasSubstr("threads is 96"));
  EXPECT_THAT(refusal(row, {8, 256, 2048, 1}), HasSubstr("threads is 2048"));
  EXPECT_THAT(refusal(row, {8, 256, 256, 9}), HasSubstr("per_sm is 9; 1 to 8"));
  EXPECT_THAT(refusal(row, {8, 256, 256, 0}), HasSubstr("per_sm is 0"));
  EXPECT_THAT(refusal(row, {6, 256, 256, 4}), HasSubstr("tile rows is 6"));
  EXPECT_THAT(refusal(row, {8, 128, 256, 4}), HasSubstr("tile columns is 128"));
  EXPECT_THAT(refusal(row, {32, 256, 256, 4}), HasSubstr("vectors per thread is 32"));
  EXPECT_THAT(refusal(square, {8, 128, 256, 4}), HasSubstr("tile rows is 8; 16, 32, 64, 128 is"));
  EXPECT_THAT(refusal(square, {128, 128, 32, 4}), HasSubstr("vectors per thread is 64"));
  QuantizeProblem both = row;
  both.output = QuantizeOutput::kBoth;
  EXPECT_EQ(refusal(both, {128, 128, 256, 3, true}), "");
  EXPECT_EQ(refusal(both, {256, 128, 512, 1, true}), "");
  EXPECT_THAT(refusal(both, {96, 128, 128, 4}), HasSubstr("16, 32, 64, 128 and 256 are allowed"));
  EXPECT_EQ(refusal(both, {128, 128, 512, 2}), "");
  EXPECT_THAT(refusal(both, {128, 128, 1024, 1}), HasSubstr("vectors per thread is 2; 4 and 8"));
  EXPECT_THAT(refusal(row, {8, 256, 256, 4, true}), HasSubstr("raster"));
  const QuantizeProblem per_row = problem_of(Granularity::kPerRow);
  EXPECT_EQ(refusal(per_row, {1, 7168, 128, 8}), "");
  EXPECT_THAT(refusal(per_row, {2, 7168, 128, 8}), HasSubstr("tile rows is 2; 1 is"));
  EXPECT_THAT(refusal(per_row, {1, 7000, 128, 8}), HasSubstr("tile columns is 7000"));
  QuantizeProblem fp32 = row;
  fp32.x = {DType::kFP32};  // a warp loads 128 columns, not 256
  EXPECT_EQ(refusal(fp32, {8, 128, 256, 4}), "");
}

TEST(QuantizeConfig, FewRowsAreHeldAtOnce) {
  const QuantizeProblem square = problem_of(Granularity::k128x128);
  QuantizeProblem both = problem_of(Granularity::k1x128);
  EXPECT_FALSE(takes_few_rows(both));
  both.output = QuantizeOutput::kBoth;
  for (const QuantizeProblem& p : {square, both}) {
    EXPECT_TRUE(takes_few_rows(p));
    EXPECT_EQ(refusal(p, {16, 128, 128, 4}), "");
    EXPECT_EQ(refusal(p, {64, 128, 256, 2}), "");
    EXPECT_THAT(refusal(p, {16, 64, 128, 4}), HasSubstr("tile columns is 64; 128 are allowed"));
    EXPECT_THAT(refusal(p, {16, 128, 128, 4, true}), HasSubstr("raster is rows; cols is allowed"));
    // Any row count is right, so that the grid has a thread block for every 128 rows.
    const auto blocks = launch_blocks(p, {16, 128, 128, 4}, 300, 0);
    ASSERT_TRUE(blocks.has_value());
    EXPECT_EQ(*blocks, 3 * ceil_div(p.cols, 128));
  }
  EXPECT_THAT(refusal(square, {64, 128, 64, 4}), HasSubstr("vectors per thread is 16; 1 to 8"));
  EXPECT_THAT(refusal(both, {16, 128, 64, 4}), HasSubstr("threads is 64; 128 to 1024"));
  EXPECT_THAT(refusal(both, {16, 128, 256, 2}), HasSubstr("vectors per thread is 1; 2 to 8"));
  EXPECT_EQ(refusal(square, {16, 128, 256, 2}), "");
  both.x = {DType::kFP32};
  EXPECT_THAT(refusal(both, {16, 128, 256, 2}), HasSubstr("vectors per thread is 2; 4 to 8"));
  both.x = {DType::kBF16};
  both.bias_gradient = true;
  EXPECT_THAT(refusal(both, {16, 128, 128, 4}), HasSubstr("tile rows is 16; 128 is allowed"));
}

TEST(QuantizeConfig, DefaultsHoldAsManyRowsAsFewRowTensorsHave) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem p = problem_of(Granularity::k128x128);
  p.cols = 7168;
  for (const auto& [rows, tile] : {std::pair{1, 16}, {16, 16}, {17, 32}, {64, 64}, {65, 128}}) {
    EXPECT_EQ(default_config(p, rows, h200).tile_rows, tile) << rows;
  }
  EXPECT_EQ(default_config(p, kDynamic, h200).tile_rows, 128);
  // Half-width tiles of a transposed copy alone are faster from 17 rows on, if all are resident.
  p = problem_of(Granularity::k1x128);
  p.output = QuantizeOutput::kTransposed;
  p.cols = 7168;
  EXPECT_EQ(default_config(p, 16, h200).tile_rows, 16);
  EXPECT_EQ(default_config(p, 17, h200).tile_cols, 64);
  p.cols = 18432;
  EXPECT_EQ(default_config(p, 17, h200).tile_rows, 32);
}

TEST(QuantizeConfig, RowsOfComputedValuesStream) {
  QuantizeProblem computed = problem_of(Granularity::k1x128);
  EXPECT_FALSE(streams_rows(computed));
  EXPECT_EQ(step_rows(computed, {8, 256, 64, 16}), 8);
  EXPECT_EQ(ring_bytes(computed, {8, 256, 64, 16}), 0);
  computed.source = "silu_mul";
  EXPECT_TRUE(streams_rows(computed));
  EXPECT_EQ(step_rows(computed, {16, 256, 64, 10}), 4);
  EXPECT_EQ(step_rows(computed, {2, 256, 64, 10}), 2);
  EXPECT_EQ(resources_of(computed, {16, 256, 64, 10}).vectors_per_thread, 8);
  // Two warps have two steps of 4 rows with two inputs of 512 bytes.
  EXPECT_EQ(ring_bytes(computed, {16, 256, 64, 10}), 2 * 2 * 4 * 2 * 512);
  EXPECT_EQ(refusal(computed, {16, 256, 64, 10}), "");
  EXPECT_THAT(refusal(computed, {128, 256, 64, 10}), HasSubstr("tile rows is 128; a power of two"));
  EXPECT_THAT(refusal(computed, {16, 128, 64, 10}), HasSubstr("tile columns is 128; the 256"));
  EXPECT_THAT(refusal(computed, {16, 256, 256, 2}), HasSubstr("threads is 256; their rows"));
  // Each warp needs 16 KB; the default halves the block until its warps fit.
  computed.x = {DType::kFP32};
  computed.source = "mul(x0,mul(x1,mul(x2,x3)))";
  EXPECT_EQ(default_config(computed, 16384, *find_device("h200")).threads, 32);
  computed.output = QuantizeOutput::kBoth;
  EXPECT_FALSE(streams_rows(computed));
}

TEST(QuantizeConfig, TwoExpressionsShareAWarpWhereNoScaleIsOfBoth) {
  QuantizeProblem both = problem_of(Granularity::k1x128);
  both.source = "dsilu_mul";
  EXPECT_TRUE(takes_both_halves(both));
  EXPECT_EQ(default_config(both, 16384, *find_device("h200")), (QuantizeConfig{8, 512, 64, 10}));
  EXPECT_EQ(step_rows(both, {8, 512, 64, 10}), 2);
  EXPECT_EQ(resources_of(both, {8, 512, 64, 10}).vectors_per_thread, 8);
  EXPECT_EQ(ring_bytes(both, {8, 512, 64, 10}), 2 * 2 * 2 * 3 * 512);
  EXPECT_THAT(refusal(both, {8, 256, 64, 10}), HasSubstr("tile columns is 256; 512 are allowed"));
  EXPECT_EQ(launch_blocks(both, {8, 512, 64, 10}, 16).value(), 14);
  both.cols = 7168 + 128;  // a block of 128 would cross the halves
  EXPECT_FALSE(takes_both_halves(both));
  EXPECT_EQ(refusal(both, {8, 256, 64, 10}), "");
  both.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  EXPECT_TRUE(takes_both_halves(both));
  both.source = "silu_mul";
  EXPECT_FALSE(takes_both_halves(both));
  both.source = "dsilu_mul";
  both.output = QuantizeOutput::kBoth;
  EXPECT_FALSE(takes_both_halves(both));
}

TEST(QuantizeConfig, TwoBlocksOfComputedTilesShareAnSmWhereTheyDoNotSpill) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem p = problem_of(Granularity::k1x128);
  const auto blocks = [&](std::string_view source, QuantizeOutput output) {
    p.source = source;
    p.output = output;
    return default_config(p, 16384, h200).blocks_per_sm;
  };
  for (const char* source : {"silu_mul", "gelu_tanh", "dsilu_mul"}) {
    EXPECT_EQ(blocks(source, QuantizeOutput::kBoth), 2) << source;
    EXPECT_EQ(blocks(source, QuantizeOutput::kTransposed), 2) << source;
  }
  constexpr const char* kFour = "mul(mul(x0,x1),mul(x2,x3))";
  EXPECT_EQ(blocks(kFour, QuantizeOutput::kBoth), 1);
  p.q.scale = ScaleFormat::kBF16;
  EXPECT_EQ(blocks("silu", QuantizeOutput::kTransposed), 2);
  EXPECT_EQ(blocks("silu", QuantizeOutput::kBoth), 1);
  EXPECT_EQ(blocks("dsilu_mul", QuantizeOutput::kBoth), 1);
  p.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  EXPECT_EQ(blocks("silu_mul", QuantizeOutput::kTransposed), 2);
  EXPECT_EQ(blocks("silu_mul", QuantizeOutput::kBoth), 1);
  EXPECT_EQ(blocks("dsilu_mul", QuantizeOutput::kTransposed), 2);
  EXPECT_EQ(blocks("dsilu_mul", QuantizeOutput::kBoth), 1);
  p.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  EXPECT_EQ(blocks("gelu_tanh", QuantizeOutput::kBoth), 2);
  EXPECT_EQ(blocks("mul(x0,x1)", QuantizeOutput::kBoth), 1);
  EXPECT_EQ(blocks("dsilu_mul", QuantizeOutput::kBoth), 2);
  p.bias_gradient = true;
  EXPECT_EQ(blocks("dsilu", QuantizeOutput::kBoth), 1);
  EXPECT_EQ(blocks("dsilu", QuantizeOutput::kTransposed), 2);
  EXPECT_EQ(blocks("dsilu_mul", QuantizeOutput::kBoth), 2);
  p.x.dtype = DType::kFP32;
  EXPECT_EQ(blocks("dsilu", QuantizeOutput::kTransposed), 1);
}

TEST(QuantizeConfig, LargeTensorsOfOneInputLookUp) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem gelu = problem_of(Granularity::k1x128);
  gelu.source = "gelu_tanh";
  const QuantizeConfig table{32, 256, 512, 1, false, true};
  EXPECT_EQ(default_config(gelu, 16384, h200), table);
  EXPECT_EQ(default_config(gelu, 4096, h200).tile_rows, 8);
  EXPECT_FALSE(default_config(gelu, 128, h200).looks_up);
  EXPECT_FALSE(default_config(gelu, kDynamic, h200).looks_up);
  EXPECT_EQ(to_text(table), "tile=32x256 threads=512 per_sm=1 lookup=1");
  EXPECT_EQ(parse_quantize_config(to_text(table)).value(), table);
  EXPECT_EQ(parse_quantize_config("tile=32x256 lookup=0").value().looks_up, false);
  EXPECT_FALSE(parse_quantize_config("lookup=2"));
  EXPECT_THAT(kernel_name(gelu, table), HasSubstr("t32x256_w16_occ1_lookup"));
  // A table of 32 KB lies beside two steps of 4 rows for each of 16 warps.
  EXPECT_EQ(resources_of(gelu, table).smem_bytes, 32768 + 16 * 2 * 4 * 512);
  EXPECT_EQ(resources_of(gelu, {32, 256, 64, 10}).smem_bytes, 0);
  EXPECT_EQ(refusal(gelu, {32, 256, 512, 2, false, true}), "");
  EXPECT_THAT(refusal(gelu, {32, 256, 512, 3, false, true}),
              HasSubstr("per_sm is 3; the 98304 bytes of a block"));
  EXPECT_EQ(grid_of(gelu, table, 132).resident(1000), 132);
  EXPECT_EQ(grid_of(gelu, table, 132).resident(100), 100);
  EXPECT_EQ(grid_of(gelu, {32, 256, 64, 10}, 132).resident(5000), 5000);
  gelu.source = "silu_mul";
  EXPECT_THAT(refusal(gelu, table), HasSubstr("lookup is 1; 0 is allowed"));
  gelu.source = "gelu_tanh";
  gelu.q.granularity = Granularity::k128x128;
  EXPECT_THAT(refusal(gelu, {128, 128, 512, 2, false, true}), HasSubstr("lookup is 1"));
}

TEST(QuantizeConfig, AThreadBlockHasBothHalvesWhereThereAreManyTiles) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem p = problem_of(Granularity::k1x128);
  p.cols = 7168;
  p.source = "dsilu_mul";
  p.output = QuantizeOutput::kBoth;
  const QuantizeConfig together{128, 128, 512, 2, false, false, false, true};
  EXPECT_EQ(default_config(p, 16384, h200), together);
  EXPECT_EQ(default_config(p, 1024, h200), together);
  EXPECT_EQ(default_config(p, kDynamic, h200), together);
  // All tiles of a half are resident at once.
  const QuantizeConfig apart{128, 128, 512, 2};
  EXPECT_EQ(default_config(p, 512, h200), apart);
  EXPECT_EQ(launch_blocks(p, together, 16384).value(), 128 * 28);
  EXPECT_EQ(launch_blocks(p, apart, 16384).value(), 128 * 56);
  EXPECT_EQ(resources_of(p, together).smem_bytes, 64 * 1024);
  EXPECT_EQ(resources_of(p, apart).smem_bytes, 0);
  EXPECT_EQ(to_text(together), "tile=128x128 threads=512 per_sm=2 halves=together");
  EXPECT_EQ(parse_quantize_config(to_text(together)).value(), together);
  EXPECT_FALSE(parse_quantize_config("halves=apart").value().halves_together);
  EXPECT_FALSE(parse_quantize_config("halves=1"));
  EXPECT_THAT(kernel_name(p, together), HasSubstr("_t128x128_w16_occ2_halves"));
  EXPECT_THAT(refusal(p, {256, 128, 1024, 2, false, false, false, true}),
              HasSubstr("per_sm is 2; the 172032 bytes of a block, its codes and the values that "
                        "wait, pass the shared memory of an SM"));
  const auto is_refused = [&] {
    return refusal(p, together).find("halves is together; apart is allowed") != std::string::npos &&
           !may_take_halves_together(p) && !default_config(p, 16384, h200).halves_together;
  };
  p.cols = 7168 + 128;  // half a block belongs to each half
  EXPECT_TRUE(is_refused());
  p.cols = 7168;
  p.source = "silu_mul";
  EXPECT_TRUE(is_refused());
  p.source = "dsilu_mul";
  p.output = QuantizeOutput::kRowwise;
  EXPECT_TRUE(is_refused());
}

TEST(QuantizeConfig, LargeTensorsOrderTheScalesOfBothCopies) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem p = problem_of(Granularity::k1x32);
  p.q.scale = ScaleFormat::kE8M0;
  p.output = QuantizeOutput::kBoth;
  const QuantizeConfig ordered{128, 128, 256, 3, false, false, true};
  EXPECT_EQ(default_config(p, 16384, h200), ordered);
  EXPECT_FALSE(default_config(p, 1024, h200).orders_scales);
  EXPECT_FALSE(default_config(p, kDynamic, h200).orders_scales);
  EXPECT_EQ(to_text(ordered), "tile=128x128 threads=256 per_sm=3 scales=ordered");
  EXPECT_EQ(parse_quantize_config(to_text(ordered)).value(), ordered);
  EXPECT_FALSE(parse_quantize_config("scales=direct").value().orders_scales);
  EXPECT_FALSE(parse_quantize_config("scales=1"));
  EXPECT_THAT(kernel_name(p, ordered), HasSubstr("_t128x128_w8_occ3_ordered"));
  EXPECT_THAT(companions_of(p, ordered), ElementsAre(Companion::kScaleOrder));
  EXPECT_THAT(companions_of(p, {128, 128, 256, 3}), IsEmpty());
  EXPECT_THAT(refusal(p, {256, 128, 512, 1, false, false, true}),
              HasSubstr("scales is ordered; direct is allowed with tiles of 256x128"));
  EXPECT_THAT(refusal(p, {128, 64, 256, 2, false, false, true}),
              HasSubstr("direct is allowed with tiles of 128x64"));
  p.output = QuantizeOutput::kTransposed;
  EXPECT_TRUE(may_order_scales(p));
  EXPECT_FALSE(default_config(p, 16384, h200).orders_scales);
  p.output = QuantizeOutput::kBoth;
  // These columns have 88, 90 and 92 scales, all with a stride of 92.
  for (const std::int64_t cols : {2816, 2880, 2944}) {
    p.cols = cols;
    EXPECT_FALSE(default_config(p, 16000, h200).orders_scales) << cols;
  }
  p.cols = 3040;  // 95 scales with a stride of 96
  EXPECT_TRUE(default_config(p, 16000, h200).orders_scales);
  p.cols = 7168;
  p.output = QuantizeOutput::kBoth;
  p.source = "silu_mul";
  EXPECT_FALSE(default_config(p, 16384, h200).orders_scales);
  p.source = "";
  const auto is_refused = [&] {
    return refusal(p, ordered).find("scales is ordered; direct is allowed") != std::string::npos &&
           !may_order_scales(p);
  };
  p.scale_layout = ScaleLayout::kSwizzled;
  EXPECT_TRUE(is_refused());
  p.scale_layout = ScaleLayout::kLinear;
  p.grouping = Grouping::kContiguous;
  EXPECT_TRUE(is_refused());
  p.grouping = Grouping::kNone;
  p.output = QuantizeOutput::kRowwise;
  EXPECT_TRUE(is_refused());
  p.output = QuantizeOutput::kBoth;
  p.q = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  EXPECT_TRUE(is_refused());
}

TEST(QuantizeConfig, ScalesOfAlignedArraysAreOrdered) {
  QuantizeProblem p = problem_of(Granularity::k1x32);
  p.q.scale = ScaleFormat::kE8M0;
  p.output = QuantizeOutput::kBoth;
  QuantizeKernelArgs args;
  args.cols = p.cols;
  const auto blocks = [&](std::int64_t rows) {
    args.rows = rows;
    args.scale_ld = packed_scale_ld(p.q, rows, p.cols, false);
    args.scale_ld_transposed = packed_scale_ld(p.q, rows, p.cols, true);
    const OrderBlocks all = order_blocks(p, args);
    EXPECT_EQ(all.all(), all.of_rows + all.of_columns);
    return std::pair(all.of_rows, all.of_columns);
  };
  // 7168 columns are 7 groups of 8 tiles, each ordered by one thread block; 16384 rows are 16
  // groups.
  EXPECT_THAT(blocks(16384), Pair(128 * 1, 56 * 2));
  EXPECT_THAT(blocks(16384 + 1), Pair(128, 0));      // 513 scales with a stride of 516
  EXPECT_THAT(blocks(16384 + 385), Pair(131, 112));  // 525 scales with a stride of 528: 16 groups
  EXPECT_THAT(blocks(960), Pair(7, 0));              // 30 scales of a column are fewer than 8 tiles
  EXPECT_THAT(blocks(127), Pair(0, 0));
  args.scale = reinterpret_cast<void*>(std::uintptr_t{8});
  EXPECT_THAT(blocks(16384), Pair(0, 112));
  args.scale_transposed = reinterpret_cast<void*>(std::uintptr_t{32 + 4});
  EXPECT_THAT(blocks(16384), Pair(0, 0));
  args.scale = args.scale_transposed = reinterpret_cast<void*>(std::uintptr_t{48});
  EXPECT_THAT(blocks(16384), Pair(128, 112));
  p.output = QuantizeOutput::kTransposed;
  EXPECT_THAT(blocks(16384), Pair(0, 112));
  p.output = QuantizeOutput::kBoth;
  args.rows = 16384;
  args.scale_ld += 8;  // a caller's own stride
  EXPECT_EQ(order_blocks(p, args).of_rows, 0);
  args.scale_ld += 8;
  EXPECT_EQ(order_blocks(p, args).of_rows, 128);
}

TEST(QuantizeConfig, NarrowTensorsFillTheirTiles) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem p = problem_of(Granularity::k1x128);
  const auto config = [&](std::int64_t rows, std::int64_t cols) {
    p.cols = cols;
    return default_config(p, rows, h200);
  };
  for (const std::int64_t cols : {64, 128, 256}) {
    EXPECT_EQ(config(2000, cols), (QuantizeConfig{1, 256, 64, 16})) << cols;
  }
  EXPECT_EQ(config(1000, 512), (QuantizeConfig{1, 512, 64, 16}));
  EXPECT_EQ(config(1000, 1000), (QuantizeConfig{1, 1024, 64, 16}));
  // Not more than an eighth of the columns is missing from the tiles.
  EXPECT_EQ(config(500, 1536), (QuantizeConfig{1, 512, 64, 16}));
  EXPECT_EQ(config(1000, 513), (QuantizeConfig{1, 256, 64, 16}));
  p.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  for (const std::int64_t cols : {64, 128, 256, 512, 1023}) {
    EXPECT_EQ(config(131072, cols), (QuantizeConfig{8, 256, 64, 12})) << cols;
  }
  EXPECT_EQ(config(131072, 1024), (QuantizeConfig{1, 1024, 128, 8}));
  EXPECT_EQ(config(8000, 128), (QuantizeConfig{1, 256, 64, 16}));
  EXPECT_EQ(config(1000, 512), (QuantizeConfig{1, 512, 64, 16}));
  p.x = {DType::kFP32};  // a warp loads 128 columns
  EXPECT_EQ(config(131072, 128), (QuantizeConfig{8, 128, 64, 12}));
  EXPECT_EQ(config(8000, 64), (QuantizeConfig{1, 128, 64, 12}));
  EXPECT_EQ(config(1000, 512), (QuantizeConfig{1, 512, 64, 12}));
}

TEST(QuantizeConfig, WarpsOfFewRowsAndOfShortScalesHaveOneRow) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem p = problem_of(Granularity::k1x128);
  EXPECT_EQ(default_config(p, 128, h200), (QuantizeConfig{1, 1024, 64, 16}));
  EXPECT_EQ(default_config(p, 8, h200), (QuantizeConfig{1, 256, 64, 16}));
  EXPECT_EQ(default_config(p, 16384, h200), (QuantizeConfig{8, 256, 64, 16}));
  // Tiles of 8 rows that all fit at once are replaced by tiles of 2, if these fill the SMs.
  EXPECT_EQ(default_config(p, 256, h200), (QuantizeConfig{2, 256, 128, 12}));
  EXPECT_EQ(default_config(p, 1024, h200), (QuantizeConfig{2, 256, 128, 12}));
  EXPECT_EQ(default_config(p, 2048, h200), (QuantizeConfig{8, 256, 64, 16}));
  p.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  EXPECT_EQ(default_config(p, 128, h200), (QuantizeConfig{1, 1024, 64, 16}));
  EXPECT_EQ(default_config(p, 16384, h200), (QuantizeConfig{1, 1024, 128, 8}));
  EXPECT_EQ(default_config(p, kDynamic, h200), (QuantizeConfig{8, 256, 64, 12}));
  p.x = {DType::kFP32};
  EXPECT_EQ(default_config(p, 16384, h200), (QuantizeConfig{1, 1024, 128, 6}));
  p.scale_layout = ScaleLayout::kSwizzled;
  EXPECT_EQ(default_config(p, 16384, h200).tile_rows, 8);
}

TEST(QuantizeConfig, NormedRowsAreWholeOrInPartsOfTheSum) {
  QuantizeProblem norm = problem_of(Granularity::k1x128);
  norm.source = "rmsnorm";
  EXPECT_EQ(refusal(norm, {2, 7168, 128, 5}), "");
  EXPECT_EQ(resources_of(norm, {2, 7168, 128, 5}).vectors_per_thread, 14);
  EXPECT_EQ(refusal(norm, {25, 7168, 128, 5}), "");
  EXPECT_THAT(refusal(norm, {65, 7168, 128, 5}), HasSubstr("tile rows is 65; 1 to 64"));
  EXPECT_THAT(refusal(norm, {2, 7000, 128, 5}), HasSubstr("tile columns is 7000; a multiple"));
  EXPECT_THAT(refusal(norm, {2, 8192, 1024, 1}), HasSubstr("threads is 1024; a power of two up"));
  EXPECT_EQ(refusal(norm, {2, 4096, 128, 7}), "");
  EXPECT_THAT(refusal(norm, {2, 2048, 128, 7}), HasSubstr("a row's sum has one order"));
  const DeviceSpec& h200 = *find_device("h200");
  EXPECT_EQ(default_config(norm, 128, h200).tile_rows, 1);
  EXPECT_EQ(default_config(norm, 16384, h200), (QuantizeConfig{2, 7168, 128, 5}));
}

TEST(QuantizeConfig, InversesHaveTilesOfTheirOwn) {
  QuantizeProblem widen = problem_of(Granularity::k1x128);
  widen.operation = QuantizeOperation::kDequantize;
  widen.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  widen.q = {DType::kBF16};
  EXPECT_EQ(refusal(widen, {8, 256, 64, 16}), "");  // a lane's 16 bytes belong to the output
  EXPECT_THAT(refusal(widen, {8, 128, 64, 16}), HasSubstr("tile columns is 128"));
  EXPECT_THAT(refusal(widen, {8, 256, 64, 16, true}), HasSubstr("raster"));
  EXPECT_EQ(kernel_name(widen, {8, 256, 64, 16}),
            "octile_dequantize_e4m3_1x128_f32_bf16_row_t8x256_w2_occ16");
  widen.q = {DType::kFP32};
  EXPECT_EQ(refusal(widen, {8, 128, 64, 12}), "");

  QuantizeProblem turn = problem_of(Granularity::k128x128);
  turn.operation = QuantizeOperation::kTranspose;
  turn.x = turn.q;
  turn.output = QuantizeOutput::kTransposed;
  EXPECT_EQ(refusal(turn, {256, 128, 256, 3, true}), "");
  EXPECT_EQ(refusal(turn, {128, 256, 256, 3}), "");
  EXPECT_THAT(refusal(turn, {64, 128, 64, 3}), HasSubstr("tile rows is 64; 128 and 256"));
  EXPECT_THAT(refusal(turn, {128, 64, 64, 3}), HasSubstr("tile columns is 64; 128 and 256"));
  EXPECT_THAT(refusal(turn, {256, 256, 512, 1}), HasSubstr("static shared memory"));
  EXPECT_THAT(refusal(turn, {128, 128, 256, 3}), HasSubstr("vectors per thread is 4; 8 are"));
  EXPECT_EQ(kernel_name(turn, {256, 128, 256, 3, true}),
            "octile_transpose_e4m3_128x128_f32_t256x128_w8_occ3_down");
  EXPECT_EQ(launch_blocks(turn, {256, 128, 256, 3, true}, 257).value(), 2 * 56);

  QuantizeProblem again = problem_of(Granularity::k1x128);
  again.x = {DType::kE5M2, Granularity::k1x32, ScaleFormat::kE8M0};
  EXPECT_EQ(refusal(again, {8, 128, 64, 12}), "");  // the values are fp32
  for (const QuantizeProblem& p : {widen, turn, again}) {
    for (std::int64_t rows = 1; rows <= 65536; rows *= 4) {
      EXPECT_EQ(refusal(p, default_config(p, rows, *find_device("h200"))), "") << rows;
    }
  }
}

TEST(QuantizeConfig, TilesOfWhatIsQuantisedAgainHoldCodes) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem again = problem_of(Granularity::k1x128);
  again.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32};
  EXPECT_FALSE(holds_codes(again));  // row-wise, warps hold values
  again.output = QuantizeOutput::kTransposed;
  EXPECT_TRUE(holds_codes(again));
  const QuantizeConfig transposed = default_config(again, 16384, h200);
  EXPECT_EQ(to_text(transposed), "tile=128x128 threads=256 per_sm=4 raster=rows");
  EXPECT_EQ(resources_of(again, transposed).vectors_per_thread, 8);
  EXPECT_THAT(refusal(again, {128, 128, 1024, 1}), HasSubstr("vectors per thread is 2"));
  again.output = QuantizeOutput::kBoth;
  EXPECT_EQ(to_text(default_config(again, 16384, h200)), "tile=128x128 threads=256 per_sm=3");
  // The first pass holds values, 4 columns in each lane.
  again.q = {DType::kE4M3, Granularity::kPerRow, ScaleFormat::kF32};
  EXPECT_EQ(first_pass_blocks(again, {}, 513, 132).value(), 2 * 56);
}

// 64 registers for each thread hold a patch of fp32 and the values that squares need.
TEST(QuantizeConfig, TwoBlocksOfFp32SquaresShareAnSm) {
  QuantizeProblem square = problem_of(Granularity::k128x128);
  square.x = {DType::kFP32};
  square.output = QuantizeOutput::kBoth;
  EXPECT_EQ(to_text(default_config(square, 16384, *find_device("h200"))),
            "tile=128x128 threads=512 per_sm=2");
}

// Tiles are half-width if each SM has at most one tile of 128 columns and tiles can share what they
// read beyond their own columns.
TEST(QuantizeConfig, FewTilesAreNarrow) {
  const DeviceSpec& h200 = *find_device("h200");
  QuantizeProblem p = problem_of(Granularity::k1x128);
  p.output = QuantizeOutput::kBoth;
  EXPECT_EQ(to_text(default_config(p, 128, h200)), "tile=128x64 threads=256 per_sm=2 copies=apart");
  EXPECT_EQ(to_text(default_config(p, 256, h200)), "tile=128x64 threads=128 per_sm=4 copies=apart");
  // 224 tiles of 128 columns: two an SM, and no room for a third.
  EXPECT_EQ(to_text(default_config(p, 512, h200)), "tile=128x128 threads=256 per_sm=2");
  EXPECT_EQ(default_config(p, 1024, h200), default_config(p, 16384, h200));
  EXPECT_EQ(default_config(p, kDynamic, h200), default_config(p, 16384, h200));
  EXPECT_EQ(launch_blocks(p, default_config(p, 128, h200), 128).value(), 2 * 112);
  p.output = QuantizeOutput::kTransposed;
  EXPECT_EQ(to_text(default_config(p, 128, h200)), "tile=128x64 threads=128 per_sm=4 raster=rows");
  EXPECT_EQ(to_text(default_config(p, 512, h200)), "tile=128x128 threads=256 per_sm=4 raster=rows");
  EXPECT_EQ(to_text(default_config(p, 1024, h200)), "tile=128x128 threads=256 per_sm=3");
  QuantizeProblem squares = problem_of(Granularity::k128x128);
  EXPECT_EQ(to_text(default_config(squares, 128, h200)), "tile=128x64 threads=256 per_sm=2");
  EXPECT_EQ(to_text(default_config(squares, 256, h200)), "tile=128x64 threads=512 per_sm=1");
  EXPECT_EQ(to_text(default_config(squares, 512, h200)), "tile=128x128 threads=256 per_sm=4");
  EXPECT_EQ(to_text(default_config(squares, 1024, h200)), "tile=128x128 threads=256 per_sm=3");
  p.x = {DType::kFP32};
  EXPECT_EQ(to_text(default_config(p, 128, h200)), "tile=128x64 threads=256 per_sm=1 raster=rows");
  EXPECT_EQ(default_config(p, 256, h200).tile_cols, 128);  // one fp32 block for each SM
  QuantizeProblem grouped = p;
  grouped.grouping = Grouping::kContiguous;
  QuantizeProblem computed = p;
  computed.source = "silu_mul";
  QuantizeProblem summed = p;
  summed.bias_gradient = true;
  for (const QuantizeProblem& wide : {grouped, computed, summed}) {
    EXPECT_EQ(default_config(wide, 128, h200).tile_cols, 128);
    EXPECT_THAT(refusal(wide, {128, 64, 256, 1}), HasSubstr("tile columns is 64; 128 is"));
  }
  EXPECT_THAT(refusal(p, {128, 32, 128, 1}), HasSubstr("tile columns is 32; 64 and 128"));
}

TEST(QuantizeConfig, BlocksCoverEveryTile) {
  const QuantizeProblem row = problem_of(Granularity::k1x128, 7168);
  const QuantizeConfig c{8, 256, 256, 4};  // 28 tiles along a row, 8 tiles in a block
  EXPECT_EQ(launch_blocks(row, c, 4096).value(), 4096 / 8 * 28 / 8);
  EXPECT_EQ(launch_blocks(row, c, 1).value(), 4);
  EXPECT_EQ(launch_blocks(problem_of(Granularity::k1x128, 1), {2, 256, 32, 4}, 5).value(), 3);
  EXPECT_EQ(launch_blocks(problem_of(Granularity::kPerRow), {1, 7168, 128, 8}, 77).value(), 77);
  const QuantizeProblem square = problem_of(Granularity::k128x128, 129);
  EXPECT_EQ(launch_blocks(square, {128, 128, 256, 4}, 257).value(), 6);
  EXPECT_EQ(launch_blocks(square, {128, 128, 256, 4}, 0).value(), 0);
  const auto too_many = launch_blocks(problem_of(Granularity::k128x128, 128), {128, 128, 256, 4},
                                      std::int64_t{1} << 38);
  ASSERT_FALSE(too_many.has_value());
  EXPECT_THAT(too_many.error().message, HasSubstr("2147483648 thread blocks"));
}

TEST(QuantizeConfig, DefaultsAreAdmittedForEverySize) {
  for (const DeviceSpec& device : known_devices()) {
    for (const std::int64_t cols : {0, 1, 300, 7168, 65536}) {
      for (const QuantizeProblem& problem : tests::quantize_cells(cols)) {
        for (const std::int64_t rows : {kDynamic, std::int64_t{0}, std::int64_t{1},
                                        std::int64_t{127}, std::int64_t{1} << 40}) {
          const QuantizeConfig config = default_config(problem, rows, device);
          const Status status = check_config(problem, config, device);
          ASSERT_TRUE(status) << device.name << " " << to_text(Problem(problem)) << " rows " << rows
                              << ": " << status.error().message;
        }
      }
    }
  }
}

TEST(QuantizeConfig, SmallTensorsTakeSmallerTiles) {
  const DeviceSpec& h200 = *find_device("h200");
  const QuantizeProblem problem = problem_of(Granularity::k1x128);
  EXPECT_EQ(default_config(problem, 16384, h200).tile_rows, 8);
  EXPECT_LT(default_config(problem, 128, h200).tile_rows, 8);
  EXPECT_GE(default_config(problem, 1, h200).tile_rows, 1);
}

TEST(QuantizeEmit, NamesSayWhatAKernelIs) {
  EXPECT_EQ(kernel_name(problem_of(Granularity::k1x128), {8, 256, 256, 4}),
            "octile_quantize_bf16_e4m3_1x128_f32_row_t8x256_w8_occ4");
  QuantizeProblem mx = problem_of(Granularity::k32x32);
  mx.q = {DType::kE5M2, Granularity::k32x32, ScaleFormat::kE8M0};
  mx.e8m0_rounding = E8M0Rounding::kOcpFloor;
  mx.output = QuantizeOutput::kBoth;
  EXPECT_EQ(kernel_name(mx, {256, 128, 512, 1, true}),
            "octile_quantize_bf16_e5m2_32x32_e8m0floor_both_t256x128_w16_occ1_down");
}

TEST(QuantizeConfig, FirstPassesAndTheirWorkspace) {
  constexpr int kSms = 132;
  const QuantizeProblem tensor = problem_of(Granularity::kPerTensor);
  EXPECT_EQ(first_pass_of(tensor), FirstPass::kTensor);
  EXPECT_EQ(companion_name(tensor, Companion::kFirstPass), "octile_amax_bf16_tensor");
  EXPECT_EQ(workspace_of(tensor, kSms).bytes(16384), kSms * 3 * 4);
  EXPECT_EQ(first_pass_blocks(tensor, {}, 16384, kSms).value(), kSms * 3);
  // Three blocks suffice, but loads are whole.
  EXPECT_EQ(first_pass_blocks(tensor, {}, 16384, 1).value(), 4);
  EXPECT_EQ(first_pass_blocks(tensor, {}, 1, kSms).value(), 4);  // 28 tiles of a warp, 8 in a block
  // A warp has as many rows as the cast's warp has loads: 1, 4 and 8.
  for (const auto& [rows, blocks] : {std::pair{16, 56}, {128, 112}, {1024, kSms * 3}}) {
    const QuantizeConfig config = default_config(tensor, rows, *find_device("h200"));
    EXPECT_EQ(first_pass_blocks(tensor, config, rows, kSms).value(), blocks) << rows;
  }
  QuantizeProblem lines = problem_of(Granularity::kPerRow);
  EXPECT_EQ(first_pass_of(lines), FirstPass::kNone);
  EXPECT_EQ(workspace_of(lines, kSms).bytes(16384), 0);
  lines.output = QuantizeOutput::kBoth;
  EXPECT_EQ(first_pass_of(lines), FirstPass::kLines);
  EXPECT_EQ(workspace_of(lines, kSms).bytes(100), 4 * (100 + 7168));
  EXPECT_EQ(first_pass_blocks(lines, {}, 513, kSms).value(), 2 * 28);
  EXPECT_TRUE(first_pass_raises(lines, 513));
  EXPECT_EQ(first_pass_blocks(lines, {}, 512, kSms).value(),
            512 + 112);  // one block for each row, or for 64 columns
  EXPECT_FALSE(first_pass_raises(lines, 512));
  QuantizeProblem long_lines = lines;
  long_lines.cols = 32769;  // the others would wait for one thread block
  EXPECT_TRUE(first_pass_raises(long_lines, 1));
  EXPECT_EQ(first_pass_blocks(long_lines, {}, 1, kSms).value(), 129);
  EXPECT_FALSE(first_pass_raises(tensor, 16384));
  lines.bias_gradient = true;  // sums of every 128 rows' columns follow the maxima, aligned
  EXPECT_EQ(workspace_of(lines, kSms).bias_offset(101), 4 * (104 + 7168));
  EXPECT_EQ(workspace_of(lines, kSms).bytes(129), 4 * (132 + 7168) + 2 * 4 * 7168);
  EXPECT_EQ(first_pass_of(problem_of(Granularity::k1x128)), FirstPass::kNone);
  QuantizeProblem delayed = tensor;  // the scale is given, so x is read once
  delayed.policy = ScalePolicy::kDelayed;
  EXPECT_EQ(first_pass_of(delayed), FirstPass::kNone);
  EXPECT_EQ(workspace_of(delayed, kSms).bytes(16384), 0);
  EXPECT_EQ(companion_name(delayed, Companion::kScaleUpdate), "octile_scale_update_e4m3_f32");
  EXPECT_EQ(companions_of(delayed, {}), std::vector{Companion::kScaleUpdate});
  EXPECT_EQ(kernel_name(delayed, {8, 256, 64, 12}),
            "octile_quantize_bf16_e4m3_tensor_f32_delayed_row_t8x256_w2_occ12");
}

TEST(QuantizeEmit, AKernelThatOrdersScalesIsThereWhereTheyAreOrdered) {
  QuantizeProblem p = problem_of(Granularity::k1x32);
  p.q.scale = ScaleFormat::kE8M0;
  p.output = QuantizeOutput::kBoth;
  const auto emitted = [&](bool ordered) {
    return emit(p, {128, 128, 256, 3, false, false, ordered}, *find_device("h200"),
                embedded_templates())
        .value();
  };
  const EmittedKernel direct = emitted(false), ordered = emitted(true);
  EXPECT_THAT(direct.companions, IsEmpty());
  EXPECT_EQ(direct.source.find("quantize/scale_order.cu"), std::string::npos);
  ASSERT_EQ(ordered.companions.size(), 1U);
  EXPECT_EQ(ordered.companions[0].name, "octile_scale_order_both");
  EXPECT_NE(ordered.source.find("#line 1 \"quantize/scale_order.cu\""), std::string::npos);
  EXPECT_NE(ordered.source.find("static_assert(quantize::OrderedScales::kAlign == 16 && "),
            std::string::npos);
}

TEST(QuantizeEmit, ShapeIsNotInTheSource) {
  const DeviceSpec& h200 = *find_device("h200");
  const QuantizeConfig config{8, 256, 256, 4};
  const auto narrow =
      emit(problem_of(Granularity::k1x128, 300), config, h200, embedded_templates());
  const auto wide = emit(problem_of(Granularity::k1x128, 7168), config, h200, embedded_templates());
  ASSERT_TRUE(narrow.has_value()) << narrow.error().message;
  ASSERT_TRUE(wide.has_value()) << wide.error().message;
  EXPECT_EQ(narrow->source, wide->source);
  EXPECT_EQ(narrow->parameter_bytes, std::vector<int>{sizeof(QuantizeKernelArgs)});
}

TEST(QuantizeEmit, NumericsWithoutATemplateAreUnsupported) {
  QuantizeProblem packed = problem_of(Granularity::k128x128);
  packed.q.scale = ScaleFormat::kUe8m0x4;
  QuantizeProblem fp8 = problem_of(Granularity::k1x128);
  fp8.x = {DType::kE4M3, Granularity::kPerTensor, ScaleFormat::kUe8m0x4};
  for (const QuantizeProblem& p : {packed, fp8}) {
    const auto kernel = emit(p, {8, 256, 256, 4}, *find_device("h200"), embedded_templates());
    ASSERT_FALSE(kernel.has_value());
    EXPECT_EQ(kernel.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(kernel.error().message, HasSubstr("is not supported"));
  }
}

}  // namespace
}  // namespace octile
