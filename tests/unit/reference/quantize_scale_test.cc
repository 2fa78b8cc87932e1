// The stored number for the largest magnitude of a block, against written values.
#include "runtime/reference/quantize/reference_scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

namespace octile::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(EncodeScale, FollowsTheContractsSteps) {
  QuantizeProblem p;
  EXPECT_EQ(encode_scale(0.0F, p), 1.0F);
  EXPECT_EQ(encode_scale(448.0F, p), 1.0F);
  EXPECT_EQ(encode_scale(3.0F, p), 448.0F / 3.0F);
  EXPECT_EQ(encode_scale(0x1p-133F, p), max_finite(DType::kBF16));  // division gives infinity
  p.x = {DType::kFP16};
  EXPECT_EQ(encode_scale(0x1p-133F, p), 65504.0F);
  p.q.scale = ScaleFormat::kF32Pow2;
  EXPECT_EQ(encode_scale(3.0F, p), 128.0F);
  EXPECT_EQ(encode_scale(448.0F, p), 1.0F);
  EXPECT_EQ(encode_scale(std::nextafter(448.0F, kInf), p), 0.5F);
  EXPECT_EQ(encode_scale(0x1p-133F, p), 32768.0F);
  p.amax_epsilon = 1.0F;
  EXPECT_EQ(encode_scale(0.5F, p), 256.0F);
  EXPECT_EQ(encode_scale(0.0F, p), 256.0F);
}

// 1.75 * 2^8 and 1.75 * 2^15 are the largest values. Rounding up, a scale is the power of two at or
// above amax divided by them. Floor gives the power of two at or below amax divided by 2^8 or 2^15.
TEST(EncodeScale, E8M0RoundsUpOrAsTheOcpTextSays) {
  struct Row {
    DType fp8;
    float amax;
    float up, floor;  // encode scales
  };
  const Row rows[] = {
      {DType::kE4M3, 448.0F, 1.0F, 1.0F},
      {DType::kE4M3, std::nextafter(448.0F, kInf), 0.5F, 1.0F},  // floor lets it saturate
      {DType::kE4M3, 511.0F, 0.5F, 1.0F},
      {DType::kE4M3, 512.0F, 0.5F, 0.5F},
      {DType::kE4M3, 256.0F, 1.0F, 1.0F},
      {DType::kE4M3, std::nextafter(256.0F, 0.0F), 1.0F, 2.0F},
      {DType::kE4M3, 224.0F, 2.0F, 2.0F},
      {DType::kE5M2, 57344.0F, 1.0F, 1.0F},
      {DType::kE5M2, 60000.0F, 0.5F, 1.0F},
      {DType::kE4M3, FLT_MAX, 0x1p-120F, 0x1p-119F},
      {DType::kE4M3, 0x1p-119F, 0x1p127F, 0x1p127F},
      {DType::kE4M3, 0x1p-149F, 0x1p127F, 0x1p127F},  // the exponent ends at 2^-127
      {DType::kE4M3, 0.0F, 1.0F, 1.0F},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.amax);
    QuantizeProblem p;
    p.x = {DType::kFP32};
    p.q = {row.fp8, Granularity::k1x32, ScaleFormat::kE8M0};
    EXPECT_EQ(encode_scale(row.amax, p), row.up);
    p.e8m0_rounding = E8M0Rounding::kOcpFloor;
    EXPECT_EQ(encode_scale(row.amax, p), row.floor);
  }
}

TEST(StoreScale, FormatsHoldWhatTheirNamesSay) {
  std::uint32_t word = 0;
  store_scale(&word, ScaleFormat::kE8M0, 0, 1.0F);
  store_scale(&word, ScaleFormat::kE8M0, 1, 0x1p127F);  // scale 2^-127
  store_scale(&word, ScaleFormat::kUe8m0x4, 2, 0.5F);
  store_scale(&word, ScaleFormat::kUe8m0x4, 3, 0x1p-120F);
  EXPECT_EQ(word, 0xF780007FU);  // the first block is in the lowest byte
  EXPECT_EQ(load_scale(&word, ScaleFormat::kE8M0, 1), 0x1p-127F);
  EXPECT_EQ(load_scale(&word, ScaleFormat::kUe8m0x4, 3), 0x1p120F);
  std::uint16_t half = 0;
  store_scale(&half, ScaleFormat::kBF16, 0, 3.0F);  // 1/3 = 0x3EAAAAAB
  EXPECT_EQ(half, 0x3EAB);
  EXPECT_EQ(load_scale(&half, ScaleFormat::kBF16, 0), std::bit_cast<float>(0x3EAB0000U));
}

}  // namespace
}  // namespace octile::reference
