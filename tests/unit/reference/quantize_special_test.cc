// Zeros, NaNs, infinities, subnormals and the largest numbers, each in blocks of their own.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

#include "generator/families.h"
#include "tests/support/plain_quantize.h"

namespace octile::reference::plain {
namespace {

// Returns one column of 128-wide blocks for each condition, so that each has a block of its own.
Input special_blocks(DType dtype) {
  Input x(128, 128 * 8, 128 * 8, dtype);
  const float largest = max_finite(dtype);
  const float smallest = dtype == DType::kFP16   ? 0x1p-24F
                         : dtype == DType::kBF16 ? 0x1p-133F
                                                 : std::numeric_limits<float>::denorm_min();
  for (std::int64_t r = 0; r < 128; ++r) {
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const auto i = static_cast<std::uint64_t>(r * x.cols + c);
      const auto draw = static_cast<float>(random_normal(3, i));
      float value = draw;
      switch (c / 128) {
        case 0:
          value = std::copysign(0.0F, draw);
          break;
        case 1:  // one NaN among numbers
          value = c % 128 == 17 ? kNan : draw;
          break;
        case 2:  // both infinities among numbers
          value = c % 128 == 5 ? kInf : c % 128 == 6 ? -kInf : draw;
          break;
        case 3:  // nothing finite
          value = c % 2 == 0 ? kNan : -kInf;
          break;
        case 4:  // up to the type's maximum
          value = c % 128 == 9 ? -largest : draw * largest / 64;
          break;
        case 5:  // subnormals: encode = fp8_max / amax overflows
          value = smallest * static_cast<float>(i % 5);
          break;
        case 6:  // one smallest subnormal among zeros
          value = c % 128 == 100 ? smallest : -0.0F;
          break;
        default:  // an infinity among zeros
          value = c % 128 == 3 ? kInf : 0.0F;
      }
      x.at(r, c) = value;
    }
  }
  x.encode();
  return x;
}

TEST(Quantize, ZerosNansInfinitiesAndExtremesKeepTheContract) {
  for (const DType dtype : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    const Input x = special_blocks(dtype);
    for (const Granularity g : kGranularities) {
      for (const DType fp8 : {DType::kE4M3, DType::kE5M2}) {
        for (const ScaleFormat f : formats_of(g)) {
          const QuantizeProblem p = problem_of(x, g, fp8, f);
          SCOPED_TRACE(to_text(Problem{p}));
          check(x, p);
        }
      }
    }
  }
}

// The same conditions against values written by hand, as a reader of docs/numerics.md expects them.
TEST(Quantize, SpecialBlocksHaveTheWrittenCodesAndScales) {
  const Input x = special_blocks(DType::kFP32);
  QuantizeProblem p = problem_of(x, Granularity::k1x128);
  p.output = QuantizeOutput::kRowwise;
  const Outputs out = run(x, p, expected(x, p));
  const auto scale = [&](int block) {
    return scale_at(out.scale, static_cast<std::size_t>(block * 128));
  };
  const auto code = [&](int col) { return static_cast<int>(out.q[static_cast<std::size_t>(col)]); };
  EXPECT_EQ(scale(0), 1.0F);  // amax 0
  EXPECT_EQ(code(0) & 0x7F, 0x00);
  EXPECT_EQ(code(128 + 17), 0x7F);
  EXPECT_LT(scale(1), 1.0F / 64);  // the NaN does not count as amax
  EXPECT_EQ(code(256 + 5), 0x7F);
  EXPECT_EQ(code(256 + 6), 0x7F);
  EXPECT_EQ(scale(3), 1.0F);  // nothing finite
  EXPECT_EQ(code(4 * 128 + 9), 0xFE);
  EXPECT_EQ(scale(4), 1.0F / (448.0F / FLT_MAX));
  // The encode scale is the input type's largest value, and the decode scale is subnormal.
  EXPECT_EQ(scale(6), 1.0F / FLT_MAX);
  EXPECT_EQ(std::fpclassify(scale(6)), FP_SUBNORMAL);
  EXPECT_EQ(code(6 * 128), 0x80);
  EXPECT_EQ(scale(7), 1.0F);
  EXPECT_EQ(code(7 * 128 + 3), 0x7F);
}

}  // namespace
}  // namespace octile::reference::plain
