// The bytes that a quantisation must move, which equal those of its stream.
#include <gtest/gtest.h>

#include "generator/families.h"
#include "runtime/prove/quantize/operands.h"

namespace octile {
namespace {

QuantizeProblem problem_of(const char* text) {
  return std::get<QuantizeProblem>(*parse_problem(text));
}

// The expected sizes for the output 256 x 512 are computed by hand.
TEST(QuantizeBytes, DataAndScalesOfEveryCopy) {
  struct Case {
    const char* text;
    std::int64_t data, scales;
  };
  constexpr std::int64_t kElements = 256 * 512;
  for (const Case& c :
       {Case{"quantize rows=256 cols=512 x=bf16 q=e4m3:1x128 out=row", 3 * kElements, 4 * 256 * 4},
        Case{"quantize rows=256 cols=512 x=bf16 q=e4m3:1x128 out=both", 4 * kElements,
             4 * (256 * 4 + 512 * 2)},
        Case{"quantize rows=256 cols=512 x=bf16 q=e4m3:1x128:ue8m0x4 out=row", 3 * kElements,
             256 * 4},
        Case{"quantize rows=256 cols=512 x=bf16 q=e4m3:1x32 out=row", 3 * kElements, 256 * 16},
        Case{"quantize rows=256 cols=512 x=bf16 q=e4m3:row out=row", 3 * kElements, 4 * 256},
        // x is also read for its maximum.
        Case{"quantize rows=256 cols=512 x=bf16 q=e4m3:tensor out=row", 5 * kElements, 4},
        // The input has two halves of 512 columns each.
        Case{"quantize rows=256 cols=512 x=bf16 q=e4m3:1x128 out=row src=silu_mul", 5 * kElements,
             4 * 256 * 4},
        Case{"quantize rows=256 cols=512 x=e4m3:1x128 q=e4m3:1x128 out=col", 2 * kElements,
             4 * (256 * 4 + 512 * 2)},
        Case{"dequantize rows=256 cols=512 x=e4m3:1x128 q=bf16 out=row", 3 * kElements,
             4 * 256 * 4}}) {
    const QuantizeProblem problem = problem_of(c.text);
    EXPECT_EQ(bytes_moved(problem, 256), c.data) << c.text;
    const auto scales = scale_bytes(problem, 256);
    ASSERT_TRUE(scales) << scales.error().message;
    EXPECT_EQ(*scales, c.scales) << c.text;
  }
}

// Only the existing rows of masked groups are written.
TEST(QuantizeBytes, MaskedGroupsHaveTheRowsThatAreThere) {
  const QuantizeProblem problem =
      problem_of("quantize rows=256 cols=512 x=bf16 q=e4m3:1x128 out=row group=masked");
  const auto scales = scale_bytes(problem, 256);
  ASSERT_TRUE(scales) << scales.error().message;
  EXPECT_EQ(*scales, rows_in_all(problem, 256) * 4 * 4);
  EXPECT_LT(rows_in_all(problem, 256), 256 * groups_of(problem));
}

}  // namespace
}  // namespace octile
