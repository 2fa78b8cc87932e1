// The host quantiser of groups of rows, of flat ranges and with swizzled scales, against that of a
// whole tensor.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/reference/scale_index.h"
#include "tests/support/quantize_cells.h"
#include "tests/support/quantize_group_case.h"

namespace octile {
namespace {

using tests::Fill;
using tests::GroupCase;
using tests::GroupSizes;
using tests::QuantizeCase;

constexpr char kPoison = QuantizeCase::kPoison;

// Returns group g as a tensor of its own.
QuantizeCase alone(const GroupCase& all, std::int64_t first_row, std::int64_t rows) {
  QuantizeProblem p = all.problem;
  p.grouping = Grouping::kNone;
  QuantizeCase c = tests::make_case(p, {rows, p.cols}, Fill::kZeros);
  const std::int64_t row_bytes = p.cols * size_of(p.x.dtype);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(c.x.data() + r * row_bytes,
                all.x.data() + (first_row + r) * all.ldx * size_of(p.x.dtype),
                static_cast<std::size_t>(row_bytes));
  }
  EXPECT_TRUE(c.run_reference(1));
  return c;
}

// Checks contiguous groups: the codes, and every scale by its place, group by group. Nothing else
// may be touched.
void check_packed(const QuantizeProblem& problem, const GroupSizes& sizes) {
  GroupCase all = tests::make_group_case(problem, 140, sizes, Fill::kMixed);
  SCOPED_TRACE(tests::describe(all, sizes, Fill::kMixed));
  ASSERT_TRUE(all.run_reference(2));
  const std::int64_t cols = all.problem.cols;
  const auto layout = quantized_layout(all.problem, all.rows, all.groups(), true).value();
  const bool packed_exponents = problem.q.scale == ScaleFormat::kUe8m0x4;
  const auto bytes = static_cast<std::size_t>(packed_exponents ? 1 : layout.scales.element_bytes);
  const auto whole = reference::packed_scale_index(problem.q, layout.data.ld, cols, true);
  std::int64_t start = 0;
  for (std::size_t g = 0; g < sizes.rows.size(); ++g) {
    const std::int64_t rows = sizes.rows[g];
    if (rows == 0) continue;
    const QuantizeCase one = alone(all, all.offsets[g], rows);
    const auto part = reference::packed_scale_index(problem.q, rows, cols, true);
    const char* const q = all.transposed.q.data() + QuantizeCase::kGuard + start;
    const char* const q_alone = one.transposed.q.data() + QuantizeCase::kGuard;
    for (std::int64_t c = 0; c < cols; ++c) {
      for (std::int64_t r = 0; r < round_up(rows, 128); ++r) {
        const char expected = r < rows ? q_alone[c * one.transposed.ld + r] : 0;
        ASSERT_EQ(q[c * layout.data.ld + r], expected) << "group " << g << " " << r << "," << c;
        if (r >= rows) continue;
        const bool tensor = problem.q.granularity == Granularity::kPerTensor;
        const auto to =
            static_cast<std::size_t>(tensor ? static_cast<std::int64_t>(g) : whole(start + r, c));
        const auto from = static_cast<std::size_t>(part(r, c));
        ASSERT_EQ(
            std::memcmp(all.transposed.scale.data() + QuantizeCase::kGuard + to * bytes,
                        one.transposed.scale.data() + QuantizeCase::kGuard + from * bytes, bytes),
            0)
            << "group " << g << " " << r << "," << c;
      }
    }
    start += round_up(rows, 128);
  }
  // The part behind the last group.
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int64_t r = start; r < layout.data.ld; ++r) {
      ASSERT_EQ(
          all.transposed.q[static_cast<std::size_t>(QuantizeCase::kGuard + c * layout.data.ld + r)],
          kPoison);
    }
  }
}

TEST(ReferenceGroups, ContiguousTransposedGroupsEqualEachAlone) {
  for (const char* q : {"e4m3:tensor", "e5m2:1x128", "e4m3:1x128:ue8m0x4", "e4m3:1x32"}) {
    const auto problem = std::get<QuantizeProblem>(
        parse_problem(
            fmt::format("quantize rows=? cols=140 x=bf16 q={} out=col group=contiguous", q))
            .value());
    for (const GroupSizes& sizes : tests::few_groups()) check_packed(problem, sizes);
  }
}

// If each scale belongs to a row or less, the row-wise result equals that of one tensor with all
// groups' rows.
TEST(ReferenceGroups, ContiguousRowsEqualTheTensorOfAllRows) {
  for (const char* q : {"e4m3:row", "e5m2:1x128", "e4m3:1x128:ue8m0x4", "e4m3:1x32"}) {
    const auto problem = std::get<QuantizeProblem>(
        parse_problem(
            fmt::format("quantize rows=? cols=140 x=fp32 q={} out=row group=contiguous", q))
            .value());
    const GroupSizes sizes{"some", {0, 3, 130, 0, 7}};
    GroupCase all = tests::make_group_case(problem, 140, sizes, Fill::kMixed);
    GroupCase tensor = all;
    all.problem.rows = all.rows;  // rows of x, independently of the groups
    ASSERT_TRUE(all.run_reference(2));
    tensor.problem.grouping = Grouping::kNone;
    tensor.rows = sizes.sum();
    ASSERT_TRUE(tensor.run_reference(2));
    EXPECT_TRUE(all.row.q == tensor.row.q);
    EXPECT_TRUE(all.row.scale == tensor.row.scale);
    EXPECT_EQ(all.nonfinite, tensor.nonfinite);
  }
}

TEST(ReferenceGroups, OneScaleAGroupIncludesEmptyGroups) {
  QuantizeProblem problem;
  problem.q.granularity = Granularity::kPerTensor;
  problem.grouping = Grouping::kContiguous;
  const GroupSizes sizes{"some", {4, 0, 9}};
  GroupCase all = tests::make_group_case(problem, 33, sizes, Fill::kNormal);
  ASSERT_TRUE(all.run_reference(1));
  const auto* scales = reinterpret_cast<const float*>(all.row.scale.data() + QuantizeCase::kGuard);
  EXPECT_EQ(scales[1], 1.0F);
  EXPECT_NE(scales[0], scales[2]);
  EXPECT_EQ(all.amax[1], 0.25F);
  for (const std::size_t g : {0U, 2U}) {
    EXPECT_FLOAT_EQ(scales[g], all.amax[g] / 448.0F);
  }
}

TEST(ReferenceGroups, MaskedGroupsEqualEachAloneAndTouchNothingElse) {
  QuantizeProblem problem;
  problem.grouping = Grouping::kMasked;
  const GroupSizes sizes{"some", {4, 0, 9, 12}};
  GroupCase all = tests::make_group_case(problem, 140, sizes, Fill::kMixed);
  ASSERT_TRUE(all.run_reference(2));
  const auto layout = quantized_layout(all.problem, all.rows, 1, false).value();
  for (std::size_t g = 0; g < sizes.rows.size(); ++g) {
    const std::int64_t rows = sizes.rows[g];
    const std::int64_t first = static_cast<std::int64_t>(g) * all.rows;
    const char* const q = all.row.q.data() + QuantizeCase::kGuard + first * all.row.ld;
    const char* const scale = all.row.scale.data() + QuantizeCase::kGuard +
                              static_cast<std::int64_t>(g) * layout.scales.bytes();
    const QuantizeCase one = rows > 0 ? alone(all, first, rows) : QuantizeCase{};
    for (std::int64_t r = 0; r < all.rows; ++r) {
      for (std::int64_t c = 0; c < 140; ++c) {
        const char expected =
            r < rows ? one.row.q[static_cast<std::size_t>(one.row.offset + r * one.row.ld + c)]
                     : kPoison;
        ASSERT_EQ(q[r * all.row.ld + c], expected) << "group " << g << " " << r << "," << c;
      }
    }
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t r = 0; r < layout.scales.ld; ++r) {
        const bool written = r < round_up(rows, 4);  // includes their padding
        char expected[4] = {kPoison, kPoison, kPoison, kPoison};
        if (written) {
          std::memcpy(expected,
                      one.row.scale.data() + QuantizeCase::kGuard + (b * one.row.scale_ld + r) * 4,
                      4);
        }
        ASSERT_EQ(std::memcmp(scale + (b * layout.scales.ld + r) * 4, expected, 4), 0)
            << "group " << g << " block " << b << " row " << r;
      }
    }
  }
}

TEST(ReferenceGroups, RefusesOffsetsAndCountsOutOfOrder) {
  QuantizeProblem problem;
  problem.grouping = Grouping::kContiguous;
  const GroupSizes sizes{"some", {4, 3, 9}};
  GroupCase c = tests::make_group_case(problem, 33, sizes, Fill::kNormal);
  c.offsets = {0, 4, 3, 16};
  EXPECT_EQ(c.run_reference(1).error().message,
            "offsets[2] is 3; allowed: 0 for the first, then 4 to rows = 21");
  c.offsets = {1, 4, 7, 16};
  EXPECT_EQ(c.run_reference(1).error().message,
            "offsets[0] is 1; allowed: 0 for the first, then 0 to rows = 21");
  c.offsets = {0, 4, 7, 22};
  EXPECT_EQ(c.run_reference(1).error().message,
            "offsets[3] is 22; allowed: 0 for the first, then 7 to rows = 21");
  problem.grouping = Grouping::kMasked;
  c = tests::make_group_case(problem, 33, sizes, Fill::kNormal);
  c.counts[1] = 13;
  EXPECT_EQ(c.run_reference(1).error().message, "counts[1] is 13; allowed: 0 to rows = 12");
}

// cuBLAS, "1D Block Scaling Factors Layout": scale (row, block) of a tile is at (row % 32) * 16 +
// row / 32 * 4 + block. Tiles are 128 x 4, row by row.
TEST(ReferenceSwizzle, ScalesLieInTilesOf128By4) {
  constexpr std::int64_t kRows = 300, kCols = 200;  // 3 tiles of rows, 7 blocks in 2 tiles
  QuantizeProblem p;
  p.q = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
  p.output = QuantizeOutput::kBoth;
  QuantizeCase linear = tests::make_case(p, {kRows, kCols}, Fill::kNormal);
  p.scale_layout = ScaleLayout::kSwizzled;
  QuantizeCase swizzled = tests::make_case(p, {kRows, kCols}, Fill::kNormal);
  ASSERT_TRUE(linear.run_reference(1));
  ASSERT_TRUE(swizzled.run_reference(2));
  EXPECT_TRUE(linear.row.q == swizzled.row.q);
  EXPECT_TRUE(linear.transposed.q == swizzled.transposed.q);
  const auto check = [](const tests::CaseOutput& a, const tests::CaseOutput& b, std::int64_t rows,
                        std::int64_t blocks) {
    const char* const plain = a.scale.data() + QuantizeCase::kGuard;
    const char* const tiles = b.scale.data() + QuantizeCase::kGuard;
    const std::int64_t across = ceil_div(blocks, 4);
    for (std::int64_t r = 0; r < round_up(rows, 128); ++r) {
      for (std::int64_t i = 0; i < 4 * across; ++i) {
        const bool scale = r < rows && i < blocks;
        const char expected = scale ? plain[r * 4 * across + i] : 127;  // padding: 2^0
        const std::int64_t tile = r / 128 * across + i / 4;
        ASSERT_EQ(tiles[tile * 512 + r % 128 % 32 * 16 + r % 128 / 32 * 4 + i % 4], expected)
            << r << "," << i;
      }
    }
  };
  check(linear.row, swizzled.row, kRows, ceil_div(kCols, 32));
  check(linear.transposed, swizzled.transposed, kCols, ceil_div(kRows, 32));
}

TEST(ReferenceNonfinite, EachIsCountedOnceWhateverTheOutputs) {
  for (const QuantizeOutput output :
       {QuantizeOutput::kRowwise, QuantizeOutput::kTransposed, QuantizeOutput::kBoth}) {
    QuantizeProblem p;
    p.x.dtype = DType::kFP32;
    p.output = output;
    QuantizeCase c = tests::make_case(p, {140, 200}, Fill::kNormal);
    for (const std::int64_t i : {0, 77, 199, 200 * 139 + 199}) {
      tests::put(c.x.data() + i * 4, DType::kFP32, i % 2 == 0 ? INFINITY : NAN);
    }
    c.nonfinite = 10;
    ASSERT_TRUE(c.run_reference(2));
    EXPECT_EQ(c.nonfinite, 14U);
  }
}

}  // namespace
}  // namespace octile
