// Rows that travel with their scales, through the C API: quantised into messages, and gathered from
// messages.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/quantize_case.h"
#include "tests/support/quantize_cells.h"

namespace octile::test {
namespace {

using tests::Fill;
using tests::QuantizeCase;

TEST(RowMessages, RunsOnTheHostEqualTheReference) {
  const LibraryHandle library{""};
  for (const QuantizeProblem& cell : tests::row_message_cells(140)) {
    const std::string text = to_text(Problem(cell));
    SCOPED_TRACE(text);
    QuantizeCase expected = tests::make_case(cell, {33, 140}, Fill::kMixed);
    QuantizeCase actual = expected;
    QuantizeArguments a;
    actual.fill(a);
    const PlanHandle plan = make_plan(library, "host", text);
    ASSERT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
    ASSERT_TRUE(expected.run_reference());
    EXPECT_TRUE(tests::same_outputs(actual, expected));
  }
}

constexpr std::int64_t kRows = 21, kCols = 400, kBlocks = 4, kMessage = kCols + 4 * kBlocks;

// What is gathered from messages of x is what quantising those rows of x gives.
TEST(RowMessages, GatheredMessagesAreThoseRowsQuantised) {
  const LibraryHandle library{""};
  const std::vector<char> x = tests::make_input(DType::kBF16, kRows * kCols, Fill::kMixed, 1);
  const std::vector<std::int32_t> index{20, 0, 3, 3, -1, 99};
  const auto rows = static_cast<std::int64_t>(index.size());
  std::vector<char> messages(kRows * kMessage), q(kRows * kCols), expected_q(kRows * kCols);
  std::vector<float> scale(kBlocks * 8, -1), expected_scale(kBlocks * 8, -1);
  const std::string types = " q=e4m3:1x128:pow2 out=row";
  QuantizeArguments a;
  a.rows = kRows;
  a.x = x.data();
  a.q = messages.data();
  a.ldq = kMessage;
  a.scale = messages.data() + kCols;
  a.scale_ld = kMessage / 4;
  const std::string send = "quantize rows=? cols=400 x=bf16" + types + " scales=rows";
  ASSERT_EQ(run_quantize(make_plan(library, "host", send).get(), a), OCTILE_OK)
      << octile_last_error();
  QuantizeArguments b;
  b.rows = rows;
  b.x = messages.data();
  b.ldx = kMessage;
  b.source_scales.x_scale = messages.data() + kCols;
  b.source_scales.x_scale_ld = kMessage / 4;
  b.gather.index = index.data();
  b.gather.x_rows = kRows;
  b.q = q.data();
  b.scale = scale.data();
  const std::string open = "gather rows=? cols=400 x=e4m3:1x128:pow2" + types;
  ASSERT_EQ(run_quantize(make_plan(library, "host", open).get(), b), OCTILE_OK)
      << octile_last_error();
  std::vector<char> moved;
  for (const std::int32_t row : {20, 0, 3, 3, 0, 20}) {
    const char* at = x.data() + row * kCols * 2;
    moved.insert(moved.end(), at, at + kCols * 2);
  }
  QuantizeArguments c;
  c.rows = rows;
  c.x = moved.data();
  c.q = expected_q.data();
  c.scale = expected_scale.data();
  const std::string plain = "quantize rows=? cols=400 x=bf16" + types;
  ASSERT_EQ(run_quantize(make_plan(library, "host", plain).get(), c), OCTILE_OK)
      << octile_last_error();
  EXPECT_EQ(q, expected_q);
  EXPECT_EQ(scale, expected_scale);
  EXPECT_EQ(scale.back(), 1.0F);  // padding
}

TEST(RowMessages, LayoutsHaveTheScalesOfARowTogether) {
  const LibraryHandle library{""};
  const PlanHandle plan = make_plan(
      library, "host", "quantize rows=? cols=700 x=bf16 q=e4m3:1x128 out=row scales=rows");
  octile_quantized_layout layout{};
  layout.struct_size = sizeof layout;
  ASSERT_EQ(octile_plan_quantized_layout(plan.get(), 33, 0, 0, &layout), OCTILE_OK);
  EXPECT_EQ(layout.scale_rows, 33);
  EXPECT_EQ(layout.scale_ld, 8);
  EXPECT_EQ(layout.scale_bytes, 33 * 8 * 4);
}

}  // namespace
}  // namespace octile::test
