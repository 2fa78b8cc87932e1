// Calls of the quantise family through the C API: host runs against the reference, delayed scaling,
// scales that another copy takes, rows that travel with their scales, and plans of descriptions.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/api_handles.h"
#include "tests/support/quantize_case.h"
#include "tests/support/quantize_cells.h"
#include "tests/support/quantize_group_case.h"

namespace octile::test {
namespace {

using tests::Fill;
using tests::QuantizeCase;

// Runs a problem's plan on the host, and expects of it what the reference writes.
template <typename Case>
void expect_reference(const LibraryHandle& library, const QuantizeProblem& problem, Case expected) {
  const std::string text = to_text(Problem(problem));
  SCOPED_TRACE(text);
  Case actual = expected;
  QuantizeArguments a;
  actual.fill(a);
  const PlanHandle plan = make_plan(library, "host", text);
  ASSERT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
  ASSERT_TRUE(expected.run_reference());
  EXPECT_TRUE(tests::same_outputs(actual, expected));
}

TEST(QuantizeCalls, RunsOnTheHostEqualTheReference) {
  const LibraryHandle library{""};
  for (const auto& cells : {tests::inverse_cells(140), tests::row_message_cells(140)}) {
    for (const QuantizeProblem& cell : cells)
      expect_reference(library, cell, tests::make_case(cell, {33, 140}, Fill::kMixed));
  }
}

TEST(QuantizeCalls, GroupsEqualTheReference) {
  const LibraryHandle library{""};
  for (const char* text :
       {"q=e4m3:1x128 out=both group=contiguous", "q=e4m3:tensor out=both group=contiguous",
        "q=e4m3:tensor out=row policy=delayed group=contiguous", "q=e5m2:1x32 out=row group=masked",
        "q=e4m3:row out=row group=masked",
        "q=e4m3:1x32 out=col group=contiguous scales=swizzled"}) {
    const auto problem = std::get<QuantizeProblem>(
        parse_problem(std::string("quantize rows=? cols=140 x=bf16 ") + text).value());
    expect_reference(library, problem,
                     tests::make_group_case(problem, 140, {"some", {3, 0, 130, 5}}, Fill::kMixed));
  }
}

TEST(QuantizeCalls, NoGroupIsNothingToDo) {
  const LibraryHandle library{""};
  QuantizeArguments a;
  a.rows = 20;
  const PlanHandle plan = make_plan(
      library, "host", "quantize rows=? cols=140 x=bf16 q=e4m3:1x128 out=row group=contiguous");
  EXPECT_EQ(run_quantize(plan.get(), a), OCTILE_OK) << octile_last_error();
}

// A description gives the same plan as the text.
TEST(QuantizeCalls, DescriptionsMakeThePlansOfTheirTexts) {
  const LibraryHandle library{""};
  octile_quantize_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.cols = 256;
  desc.operation = OCTILE_DEQUANTIZE;
  desc.x_dtype = OCTILE_E5M2;
  desc.x_granularity = OCTILE_SCALE_1X128;
  desc.x_scale_format = OCTILE_SCALE_UE8M0X4;
  desc.q_dtype = OCTILE_FP16;
  const auto text_of = [&] {
    octile_plan* plan = nullptr;
    EXPECT_EQ(octile_quantize_plan_create(library.get(), "host", &desc, &plan), OCTILE_OK)
        << octile_last_error();
    if (plan == nullptr) return std::string();
    char text[256];
    std::size_t size = sizeof text;
    EXPECT_EQ(octile_plan_problem(plan, text, &size), OCTILE_OK);
    octile_plan_destroy(plan);
    return std::string(text);
  };
  EXPECT_EQ(text_of(), "dequantize rows=? cols=256 x=e5m2:1x128:ue8m0x4 q=fp16 out=row");
  desc.operation = OCTILE_TRANSPOSE;
  desc.x_dtype = desc.q_dtype = OCTILE_E4M3;
  desc.x_granularity = desc.granularity = OCTILE_SCALE_128X128;
  desc.x_scale_format = OCTILE_SCALE_FORMAT_DEFAULT;
  desc.output = OCTILE_TRANSPOSED;
  EXPECT_EQ(text_of(), "transpose rows=? cols=256 x=e4m3:128x128 q=e4m3:128x128 out=col");
  desc.operation = OCTILE_QUANTIZE;
  desc.granularity = OCTILE_SCALE_1X32;
  EXPECT_EQ(text_of(), "quantize rows=? cols=256 x=e4m3:128x128 q=e4m3:1x32 out=col");
}

constexpr std::int64_t kTokens = 64, kWidth = 384;

// Two steps of delayed scaling.
TEST(QuantizeCalls, DelayedScalingKeepsAHistory) {
  const LibraryHandle library{""};
  const PlanHandle plan = make_plan(
      library, "host", "quantize rows=? cols=384 x=bf16 q=e4m3:tensor out=row policy=delayed");
  const std::vector<char> x = tests::make_input(DType::kBF16, kTokens * kWidth, Fill::kNormal, 1);
  std::vector<char> codes(kTokens * kWidth);
  std::vector<float> history(3, 0.0F);
  float encode = 1, scale = 0;
  QuantizeArguments args;
  args.rows = kTokens;
  args.x = x.data();
  args.q = codes.data();
  args.scale = &scale;
  args.delayed.encode_scale = &encode;
  args.monitor.amax = history.data();
  octile_scale_update_args update = {};
  update.struct_size = sizeof update;
  update.history = history.data();
  update.encode_scale = &encode;
  update.tensors = 1;
  update.length = 3;
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
    EXPECT_EQ(scale, 1.0F / encode);  // the scale before this step's update
    EXPECT_GT(history[0], 0.0F);
    ASSERT_EQ(octile_scale_update_run(plan.get(), &update, nullptr), OCTILE_OK)
        << octile_last_error();
    EXPECT_EQ(history[0], 0.0F);
    EXPECT_EQ(encode, 448.0F / history[1]);
  }
  const std::uint32_t skip = 1;
  args.skip = &skip;
  ASSERT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(history[0], 0.0F);  // the step did nothing
}

// A row-wise copy records its scale, and the transposed copy that takes it has the bits of one that
// finds the maximum itself.
TEST(QuantizeCalls, AnotherCopyTakesTheRecordedScale) {
  const LibraryHandle library{""};
  const std::vector<char> x = tests::make_input(DType::kBF16, kTokens * kWidth, Fill::kNormal, 2);
  const auto quantize = [&](const std::string& rest, QuantizeArguments args, float& scale) {
    const PlanHandle plan = make_plan(
        library, "host", "quantize rows=? cols=384 x=bf16 q=e4m3:tensor src=silu_mul out=" + rest);
    std::vector<char> codes(kTokens * kWidth);
    const bool is_row = rest == "row";
    args.rows = kTokens;
    args.x = x.data();
    args.fused.x1 = x.data();
    (is_row ? args.q : args.q_transposed) = codes.data();
    (is_row ? args.scale : args.scale_transposed) = &scale;
    EXPECT_EQ(run_quantize(plan.get(), args), OCTILE_OK) << octile_last_error();
    return codes;
  };
  float encode = 0, scales[3] = {};
  QuantizeArguments records, finds, takes;
  records.monitor.encode_scale = &encode;
  quantize("row", records, scales[0]);
  EXPECT_EQ(scales[0], 1.0F / encode);
  takes.delayed.encode_scale = &encode;
  const std::vector<char> found = quantize("col", finds, scales[1]);
  EXPECT_EQ(found, quantize("col policy=delayed", takes, scales[2]));
  EXPECT_EQ(scales[1], scales[2]);
  EXPECT_EQ(scales[0], scales[2]);
}

constexpr std::int64_t kRows = 21, kCols = 400, kBlocks = 4, kMessage = kCols + 4 * kBlocks;

// Gathering messages of rows of x gives what quantising those rows gives.
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
