// Sizes of grouped and swizzled outputs.
#include "generator/quantize/layout.h"
#include "generator/families.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "generator/quantize/config.h"
#include "generator/quantize/grid.h"

namespace octile {
namespace {

QuantizeProblem problem(std::string_view text) {
  return std::get<QuantizeProblem>(parse_problem(text).value());
}

// Returns the most columns over all divisions of `rows` rows into `groups` groups.
std::int64_t most_columns(std::int64_t rows, std::int64_t groups) {
  if (groups == 0) return 0;
  std::int64_t most = 0;
  for (std::int64_t first = 0; first <= rows; ++first) {
    const std::int64_t rest = groups == 1 ? 0 : most_columns(rows - first, groups - 1);
    most = std::max(most, round_up(first, kGroupAlign) + rest);
  }
  return most;
}

TEST(QuantizeLayout, ContiguousColumnsAreTheLeastUpperBound) {
  for (const std::int64_t groups : {0, 1, 2, 3}) {
    for (const std::int64_t rows : {0, 1, 2, 127, 128, 129, 257, 300}) {
      EXPECT_EQ(contiguous_columns(rows, groups), most_columns(rows, groups))
          << rows << " " << groups;
    }
  }
}

TEST(QuantizeLayout, ContiguousGroups) {
  const QuantizeProblem both =
      problem("quantize rows=? cols=300 x=bf16 q=e4m3:1x128 out=both group=contiguous");
  const auto row = quantized_layout(both, 1000, 7, false).value();
  EXPECT_EQ(row.data.bytes(), 1000 * 304);
  EXPECT_EQ(row.scales.outer, 3);
  EXPECT_EQ(row.scales.ld, 1000);
  const auto transposed = quantized_layout(both, 1000, 7, true).value();
  EXPECT_EQ(transposed.data.outer, 300);
  EXPECT_EQ(transposed.data.ld, 128 * (7 + (1000 - 7) / 128));
  EXPECT_EQ(transposed.scales.outer, 7 + (1000 - 7) / 128);  // blocks of 128 rows
  EXPECT_EQ(transposed.scales.ld, 300);
  const QuantizeProblem one =
      problem("quantize rows=? cols=300 x=bf16 q=e4m3:tensor out=both group=contiguous");
  EXPECT_EQ(quantized_layout(one, 1000, 7, false)->scales.bytes(), 7 * 4);
  EXPECT_EQ(quantized_layout(one, 1000, 7, true)->scales.bytes(), 7 * 4);
  EXPECT_EQ(quantized_layout(one, 1000, 0, true)->data.bytes(), 0);
}

TEST(QuantizeLayout, MaskedGroups) {
  const QuantizeProblem p =
      problem("quantize rows=? cols=300 x=bf16 q=e4m3:1x128 out=row group=masked");
  const auto one = quantized_layout(p, 50, 1, false).value();
  const auto seven = quantized_layout(p, 50, 7, false).value();
  EXPECT_EQ(one.scales.bytes(), 3 * 52 * 4);
  EXPECT_EQ(seven.data.bytes(), 7 * one.data.bytes());
  EXPECT_EQ(seven.scales.bytes(), 7 * one.scales.bytes());
}

TEST(QuantizeLayout, SwizzledScalesFillTiles) {
  const QuantizeProblem p =
      problem("quantize rows=? cols=300 x=bf16 q=e4m3:1x32 out=both scales=swizzled");
  EXPECT_EQ(quantized_layout(p, 130, 0, false)->scales.bytes(), 2 * 3 * 512);  // 130 x 10 scales
  EXPECT_EQ(quantized_layout(p, 130, 0, true)->scales.bytes(), 3 * 2 * 512);   // 300 x 5
  EXPECT_EQ(quantized_layout(p, 128, 0, true)->scales.bytes(), 3 * 1 * 512);
}

TEST(QuantizeLayout, RefusesCountsOfGroups) {
  const QuantizeProblem p =
      problem("quantize rows=? cols=300 x=bf16 q=e4m3:1x128 out=row group=masked");
  EXPECT_EQ(quantized_layout(p, 50, -1, false).error().message,
            "groups is -1; allowed: 0 to 65536");
  EXPECT_EQ(quantized_layout(p, 50, kMostGroups + 1, false).error().message,
            "groups is 65537; allowed: 0 to 65536");
  constexpr std::int64_t kRows = std::numeric_limits<std::int64_t>::max() / 304 - 1;
  const auto beyond = quantized_layout(p, kRows, 4, false);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(beyond.error().message.find("groups is 4"), std::string::npos);
}

// The grid of a launch holds every tile that any division of the rows into groups can need.
TEST(QuantizeLayout, GridsHoldEveryPacking) {
  QuantizeProblem p =
      problem("quantize rows=? cols=300 x=bf16 q=e4m3:1x128 out=both group=contiguous");
  const QuantizeConfig c{128, 128, 256, 3, true};
  EXPECT_EQ(group_walk_of(p), GroupWalk::kGroupByGroup);
  EXPECT_EQ(launch_blocks(p, c, 1000, 7).value(), (1000 / 128 + 7) * 3);
  p.output = QuantizeOutput::kRowwise;
  EXPECT_EQ(group_walk_of(p), GroupWalk::kAsOne);
  p.grouping = Grouping::kMasked;
  EXPECT_EQ(group_walk_of(p), GroupWalk::kMasked);
  EXPECT_EQ(launch_blocks(p, {8, 256, 64, 16}, 50, 7).value(), 7 * 7 * 2 / 2);
}

}  // namespace
}  // namespace octile
