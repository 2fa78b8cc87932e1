// Dequantising, quantising FP8 again and transposing through the C API: host runs against the
// reference, and errors of callers, each with its sentence.
#include <gtest/gtest.h>

#include <cstring>
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

class InverseRefusals : public ::testing::Test {
 protected:
  template <typename Change>
  void refuses(const std::string& text, const Change& change,
               const std::vector<std::string>& parts) {
    QuantizeArguments a;
    a.rows = 20;
    a.x = x.at();
    a.source_scales.x_scale = x.at(4096);
    const PlanHandle plan = make_plan(library, "host", text);
    change(a);
    std::memset(memory.at(), 0x5a, kBytes);
    expect_refused(run_quantize(plan.get(), a), OCTILE_INVALID_ARGUMENT, parts);
    for (std::size_t i = 0; i < kBytes; ++i)
      ASSERT_EQ(memory.at<unsigned char>()[i], 0x5a) << "an output was touched";
  }
  void refuses_plan(const std::string& text, octile_status status,
                    const std::vector<std::string>& parts) {
    octile_plan* plan = nullptr;
    expect_refused(octile_plan_create(library.get(), "host", text.c_str(), &plan), status, parts);
    EXPECT_EQ(plan, nullptr);
  }

  static constexpr std::size_t kBytes = 16384;
  LibraryHandle library{""};
  Bytes memory{kBytes}, x{8192};
  std::uint64_t count = 0;
  const std::string widen = "dequantize rows=? cols=140 x=e4m3:1x128 q=bf16 out=row";
  const std::string turn = "transpose rows=? cols=140 x=e4m3:128x128 q=e4m3:128x128 out=col";
  const std::string again = "quantize rows=? cols=140 x=e4m3:1x128 q=e4m3:1x128 out=row";
};

TEST_F(InverseRefusals, Arguments) {
  using Args = QuantizeArguments;
  refuses(widen, [&](Args& a) { a.q = nullptr; }, {"q is null", "allowed"});
  refuses(widen, [&](Args& a) { a.q = memory.at(1); }, {"q is 0x", "a multiple of 2 bytes"});
  refuses(widen, [&](Args& a) { a.q = memory.at(), a.ldq = 139; }, {"ldq is 139", "from 140 on"});
  refuses(widen, [&](Args& a) { a.q = memory.at(), a.source_scales.x_scale = nullptr; },
          {"source_scales.x_scale is null"});
  refuses(widen, [&](Args& a) { a.q = memory.at(), a.source_scales.x_scale = x.at(2); },
          {"source_scales.x_scale is 0x", "a multiple of 4 bytes"});
  refuses(widen, [&](Args& a) { a.q = memory.at(), a.source_scales.x_scale_ld = 16; },
          {"source_scales.x_scale_ld is 16", "a multiple of 4 from 20 on"});
  refuses(widen, [&](Args& a) { a.q = memory.at(), a.scale = memory.at(8192); },
          {"scale is given", "q is bf16"});
  refuses(widen, [&](Args& a) { a.q = memory.at(), a.q_transposed = memory.at(8192); },
          {"q_transposed is given"});
  refuses(widen, [&](Args& a) { a.q = memory.at(), a.monitor.nonfinite = &count; },
          {"monitor.nonfinite is given", "to dequantize counts nothing"});
  refuses(turn, [&](Args& a) { a.scale_transposed = memory.at(); }, {"q_transposed is null"});
  refuses(turn, [&](Args& a) { a.q_transposed = memory.at(); }, {"scale_transposed is null"});
  refuses(again,
          [&](Args& a) {
            a.q = memory.at(), a.scale = memory.at(8192), a.source_scales.x_scale = nullptr;
          },
          {"source_scales.x_scale is null"});
  refuses("quantize rows=? cols=140 x=bf16 q=e4m3:1x128 out=row",
          [&](Args& a) { a.q = memory.at(), a.scale = memory.at(8192); },
          {"source_scales.x_scale is given", "x is bf16"});
}

TEST_F(InverseRefusals, Problems) {
  const std::string blocks = "rows=? cols=140 x=e4m3:1x128 ";
  refuses_plan("dequantize " + blocks + "q=bf16 out=col", OCTILE_INVALID_ARGUMENT,
               {"out is col", "allowed is row"});
  refuses_plan("dequantize " + blocks + "q=e4m3:1x128 out=row", OCTILE_INVALID_ARGUMENT,
               {"q is e4m3:1x128", "bf16, fp16 and fp32"});
  refuses_plan("dequantize rows=? cols=140 x=bf16 q=bf16 out=row", OCTILE_INVALID_ARGUMENT,
               {"x is bf16", "e4m3 and e5m2"});
  refuses_plan("dequantize " + blocks + "q=bf16 out=row eps=1", OCTILE_INVALID_ARGUMENT,
               {"dequantize is given eps=1", "allowed"});
  refuses_plan("transpose " + blocks + "q=e4m3:1x128 out=col", OCTILE_UNSUPPORTED,
               {"quantize x again, out=col"});
  refuses_plan("transpose " + blocks + "q=e4m3:128x128 out=col", OCTILE_INVALID_ARGUMENT,
               {"q is e4m3:128x128", "the type of x"});
  refuses_plan("dequantize rows=? cols=140 x=e4m3:row:ue8m0x4 q=bf16 out=row", OCTILE_UNSUPPORTED,
               {"no such scale format"});
}

}  // namespace
}  // namespace octile::test
