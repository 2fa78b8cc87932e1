// Checks that fp32 rounded to bf16 on the way (via=bf16) has the bits of quantising that bf16.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/reference/cast.h"
#include "tests/support/expect_outputs.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using tests::Fill;
using tests::QuantizeCase;

// Numbers where rounding shows: ties, what becomes infinite, subnormals and both kinds of NaN.
constexpr std::uint32_t kHard[] = {0x3F808000, 0x3F818000, 0x3F808001, 0x7F7F7FFF, 0x7F7F8000,
                                   0x7F7FFFFF, 0xFF7FFFFF, 0x00008000, 0x00018000, 0x80000001,
                                   0x7F800001, 0xFFFFFFFF, 0x7F800000, 0x42C87FFF, 0x42C88000};

void put_hard_numbers(QuantizeCase& c) {
  for (std::size_t i = 0; i < std::size(kHard); ++i) {
    const std::size_t at = i * 37 * sizeof(float) % (c.x.size() / 4 * 4);
    std::memcpy(c.x.data() + at, &kHard[i], sizeof(float));
  }
}

// Returns the case whose input is the first one's in bf16.
QuantizeCase in_bf16(const QuantizeCase& c, QuantizeProblem problem) {
  problem.via.reset();
  problem.x = {DType::kBF16};
  QuantizeCase narrow = tests::make_case(problem, {c.rows, c.problem.cols}, Fill::kZeros);
  for (std::size_t i = 0; i < c.x.size() / sizeof(float); ++i) {
    float value = 0;
    std::memcpy(&value, c.x.data() + i * sizeof value, sizeof value);
    const std::uint16_t bits = reference::float_to_bf16(value);
    std::memcpy(narrow.x.data() + i * sizeof bits, &bits, sizeof bits);
  }
  return narrow;
}

TEST(ReferenceVia, Fp32ByWayOfBf16HasTheBitsOfBf16) {
  int compared = 0;
  for (const QuantizeProblem& problem : tests::via_cells(300)) {
    for (const Fill fill : {Fill::kNormal, Fill::kMixed}) {
      QuantizeCase wide = tests::make_case(problem, {130, 300}, fill);
      SCOPED_TRACE(tests::describe(problem, {130, 300}, fill));
      put_hard_numbers(wide);
      QuantizeCase narrow = in_bf16(wide, problem);
      ASSERT_TRUE(wide.run_reference(2));
      ASSERT_TRUE(narrow.run_reference(2));
      tests::expect_same_outputs(wide, narrow);
      EXPECT_EQ(wide.nonfinite, narrow.nonfinite);
      ++compared;
    }
  }
  EXPECT_GT(compared, 20);
}

// The result of a plan without `via` for the same numbers differs, so the tests above can fail.
TEST(ReferenceVia, Fp32ItselfHasOtherBits) {
  QuantizeProblem problem;
  problem.x = {DType::kFP32};
  QuantizeCase itself = tests::make_case(problem, {130, 300}, Fill::kNormal);
  problem.via = DType::kBF16;
  QuantizeCase rounded = tests::make_case(problem, {130, 300}, Fill::kNormal);
  ASSERT_TRUE(itself.run_reference(2));
  ASSERT_TRUE(rounded.run_reference(2));
  EXPECT_NE(itself.row.scale, rounded.row.scale);
  EXPECT_NE(itself.row.q, rounded.row.q);
}

TEST(ReferenceVia, OtherInputsAreRefused) {
  const auto message = [](const char* text) {
    const auto problem = parse_problem(text);
    if (!problem) return problem.error().message;
    const Status ok = check_supported(*problem);
    return ok ? std::string() : ok.error().message;
  };
  EXPECT_EQ(message("quantize rows=? cols=128 x=bf16 q=e4m3:1x128 out=row via=bf16"),
            "via is bf16; allowed is none with x=bf16 and no src: fp32 alone is rounded on the "
            "way, and what is computed");
  EXPECT_NE(message("quantize rows=? cols=128 x=fp32 q=e4m3:1x128 out=row via=fp16")
                .find("allowed are none and bf16"),
            std::string::npos);
  EXPECT_NE(message("dequantize rows=? cols=128 x=e4m3:1x128 q=fp32 out=row via=bf16")
                .find("options of finding scales are not allowed"),
            std::string::npos);
}

}  // namespace
}  // namespace octile
