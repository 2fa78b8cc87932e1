// The layout table of docs/numerics.md, row by row, with numbers worked out by hand.
#include "generator/core/layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace octile {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TensorType e4m3(Granularity g, ScaleFormat f) { return {DType::kE4M3, g, f}; }

struct Case {
  TensorType type;
  std::int64_t rows, cols;
  bool transposed;
  std::int64_t data_outer, data_inner;
  std::int64_t scale_outer, scale_inner;
  int scale_bytes;
  std::int64_t scale_rows, scale_cols;
};

TEST(Layout, FollowsTheTable) {
  using G = Granularity;
  using F = ScaleFormat;
  const std::vector<Case> cases{
      // 77 rows are padded to 80; 130 columns are 2 blocks of 128 or 5 of 32.
      {e4m3(G::kPerTensor, F::kF32), 77, 130, false, 77, 130, 1, 1, 4, 1, 1},
      {e4m3(G::kPerRow, F::kF32), 77, 130, false, 77, 130, 1, 80, 4, 1, 77},
      {e4m3(G::k1x128, F::kF32), 77, 130, false, 77, 130, 2, 80, 4, 2, 77},
      {e4m3(G::k1x128, F::kF32Pow2), 77, 130, false, 77, 130, 2, 80, 4, 2, 77},
      {e4m3(G::k1x128, F::kBF16), 77, 130, false, 77, 130, 2, 80, 2, 2, 77},
      // Transposed: the data are [130][80], blocks lie along the 77 rows, and 130 is padded to 132.
      {e4m3(G::k1x128, F::kF32), 77, 130, true, 130, 80, 1, 132, 4, 1, 130},
      {e4m3(G::k128x128, F::kF32), 300, 130, false, 300, 130, 3, 4, 4, 3, 2},
      {e4m3(G::k128x128, F::kF32), 300, 130, true, 130, 304, 2, 4, 4, 2, 3},
      {e4m3(G::k1x32, F::kE8M0), 77, 130, false, 77, 130, 77, 8, 1, 77, 5},
      {e4m3(G::k1x32, F::kE8M0), 77, 130, true, 130, 80, 130, 4, 1, 130, 3},
      {e4m3(G::k32x32, F::kE8M0), 77, 130, false, 77, 130, 3, 8, 1, 3, 5},
      {e4m3(G::k32x32, F::kE8M0), 77, 130, true, 130, 80, 5, 4, 1, 5, 3},
      {e4m3(G::kPerTensor, F::kF32), 77, 130, true, 130, 80, 1, 1, 4, 1, 1},
      {e4m3(G::kPerRow, F::kBF16), 77, 130, true, 130, 80, 1, 132, 2, 1, 130},
      // 9 blocks of 128 need 3 int32 words of four exponents.
      {e4m3(G::k1x128, F::kUe8m0x4), 77, 1100, false, 77, 1100, 3, 80, 4, 3, 77},
      {e4m3(G::k1x128, F::kUe8m0x4), 77, 1100, true, 1100, 80, 1, 1100, 4, 1, 1100},
      // DeepSeek-V3's weight of 7168 x 16384, whose k/128 is a multiple of 4, and one with k = 576,
      // whose k/128 is not.
      {e4m3(G::k128x128, F::kF32), 7168, 16384, false, 7168, 16384, 56, 128, 4, 56, 128},
      {e4m3(G::k128x128, F::kF32), 4096, 576, false, 4096, 576, 32, 8, 4, 32, 5},
      // Empty tensors.
      {e4m3(G::k1x128, F::kF32), 0, 130, false, 0, 130, 2, 0, 4, 2, 0},
      {e4m3(G::k1x128, F::kF32), 77, 0, false, 77, 0, 0, 80, 4, 0, 77},
      {e4m3(G::k128x128, F::kF32), 0, 0, false, 0, 0, 0, 0, 4, 0, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(to_text(c.type) + (c.transposed ? " transposed " : " ") + std::to_string(c.rows) +
                 "x" + std::to_string(c.cols));
    const auto l = quantized_layout(c.type, c.rows, c.cols, 0, c.transposed);
    ASSERT_TRUE(l) << l.error().message;
    EXPECT_EQ(l->data.outer, c.data_outer);
    EXPECT_EQ(l->data.inner, c.data_inner);
    const std::int64_t ld = round_up(c.data_inner, 16);
    EXPECT_EQ(l->data.ld, ld);
    EXPECT_EQ(l->data.element_bytes, 1);
    EXPECT_EQ(l->scales.outer, c.scale_outer);
    EXPECT_EQ(l->scales.inner, c.scale_inner);
    EXPECT_EQ(l->scales.ld, c.scale_inner);
    EXPECT_EQ(l->scales.element_bytes, c.scale_bytes);
    EXPECT_EQ(l->scale_rows, c.scale_rows);
    EXPECT_EQ(l->scale_cols, c.scale_cols);
    EXPECT_EQ(l->data.bytes(), c.data_outer * ld);
    EXPECT_EQ(l->scales.bytes(), c.scale_outer * c.scale_inner * c.scale_bytes);
  }
}

TEST(Layout, TakesTheCallersStride) {
  const TensorType type = e4m3(Granularity::k1x128, ScaleFormat::kF32);
  const auto l = quantized_layout(type, 10, 100, 112);
  ASSERT_TRUE(l);
  EXPECT_EQ(l->data.ld, 112);
  EXPECT_EQ(l->data.inner, 100);
  EXPECT_EQ(l->data.bytes(), 1120);

  const auto narrow = quantized_layout(type, 10, 100, 99);
  ASSERT_FALSE(narrow);
  EXPECT_EQ(narrow.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(narrow.error().message,
            "ld is 99; allowed is 0 (meaning 112) or at least 100, the length of a row");

  const auto transposed = quantized_layout(type, 10, 100, 15, true);
  ASSERT_FALSE(transposed);
  EXPECT_EQ(transposed.error().message,
            "ld is 15; allowed is 0 (meaning 16) or at least 16, the padded length of a row");
  EXPECT_FALSE(quantized_layout(type, 10, 100, -1));
}

TEST(Layout, RefusesWhatTheTableLacks) {
  using G = Granularity;
  using F = ScaleFormat;
  const std::vector<TensorType> refused{
      {DType::kBF16, G::kNone, F::kNone}, {DType::kE4M3, G::kNone, F::kNone},
      e4m3(G::k128x128, F::kUe8m0x4),     e4m3(G::k1x128, F::kE8M0),
      e4m3(G::k1x128, F::kNone),          e4m3(G::k1x32, F::kF32),
      e4m3(G::k32x32, F::kUe8m0x4),       e4m3(G::kPerTensor, F::kE8M0),
  };
  for (const TensorType& type : refused) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(to_text(type));
      const auto l = quantized_layout(type, 128, 128, 0, transposed);
      ASSERT_FALSE(l);
      EXPECT_EQ(l.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(l.error().message.find("allowed are"), std::string::npos) << l.error().message;
    }
  }
}

TEST(Layout, RefusesExtentsAndSizesBeyondInt64) {
  const TensorType type = e4m3(Granularity::k1x128, ScaleFormat::kF32);
  EXPECT_TRUE(quantized_layout(type, std::int64_t{1} << 31, 4));  // sizes beyond 2^31 work
  EXPECT_TRUE(quantized_layout(type, 1, std::int64_t{1} << 62));

  const auto negative = quantized_layout(type, -1, 4);
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().message, "rows is -1; allowed is 0 to 9223372036854775679");
  const auto huge = quantized_layout(type, 0, kMax);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().message,
            "cols is 9223372036854775807; allowed is 0 to 9223372036854775679");

  const auto data = quantized_layout(type, std::int64_t{1} << 32, std::int64_t{1} << 31);
  ASSERT_FALSE(data);
  EXPECT_EQ(data.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(data.error().message.find("the data of 4294967296 rows x 2147483648 elements"),
            std::string::npos)
      << data.error().message;
  // With one column and no gaps the data fit, but four bytes of scale for each row do not.
  const auto scales = quantized_layout(type, std::int64_t{1} << 62, 1, 1);
  ASSERT_FALSE(scales);
  EXPECT_NE(scales.error().message.find("the scales of 1 rows"), std::string::npos)
      << scales.error().message;
}

TEST(Layout, ByteSize) {
  EXPECT_EQ(byte_size(3, 5, 2), 30);
  EXPECT_EQ(byte_size(0, kMax, 4), 0);
  EXPECT_EQ(byte_size(1, kMax, 1), kMax);
  EXPECT_EQ(byte_size(1, kMax, 2), std::nullopt);
  EXPECT_EQ(byte_size(std::int64_t{1} << 32, std::int64_t{1} << 31, 1), std::nullopt);
}

}  // namespace
}  // namespace octile
