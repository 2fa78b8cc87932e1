// Dequantising, quantising FP8 again and transposing through the C API: host runs against the
// reference.
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

TEST(Inverse, RunsOnTheHostEqualTheReference) {
  const LibraryHandle library{""};
  for (const QuantizeProblem& cell : tests::inverse_cells(140)) {
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

// A description gives the same plan as the text.
TEST(Inverse, DescriptionsMakeThePlansOfTheirTexts) {
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

}  // namespace
}  // namespace octile::test
