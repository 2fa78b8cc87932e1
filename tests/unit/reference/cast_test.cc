#include "runtime/reference/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>

namespace octile::reference {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Fp8CastTest : public testing::TestWithParam<DType> {
 protected:
  int largest_code() const { return GetParam() == DType::kE4M3 ? 0x7E : 0x7B; }
  std::uint8_t cast(float x) const { return to_fp8(x, GetParam()); }
  float value(int code) const { return from_fp8(static_cast<std::uint8_t>(code), GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Formats, Fp8CastTest, testing::Values(DType::kE4M3, DType::kE5M2),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST_P(Fp8CastTest, FiniteCodesSurviveARoundTrip) {
  for (int code = 0; code <= largest_code(); ++code) {
    EXPECT_EQ(cast(value(code)), code);
    EXPECT_EQ(cast(value(code | 0x80)), code | 0x80);
  }
}

TEST_P(Fp8CastTest, CodesOrderAsTheirValues) {
  for (int code = 0; code < largest_code(); ++code) EXPECT_LT(value(code), value(code + 1));
  EXPECT_EQ(value(largest_code()), max_finite(GetParam()));
}

// Every midpoint, also a subnormal one, is exact in fp32.
TEST_P(Fp8CastTest, TiesGoToTheEvenCodeAndNeighboursToTheNearest) {
  for (int code = 0; code < largest_code(); ++code) {
    const float middle = (value(code) + value(code + 1)) / 2;
    EXPECT_EQ(cast(middle), code % 2 == 0 ? code : code + 1) << "above code " << code;
    EXPECT_EQ(cast(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(cast(std::nextafter(middle, kInf)), code + 1);
    EXPECT_EQ(cast(-middle), (code % 2 == 0 ? code : code + 1) | 0x80);
  }
}

TEST_P(Fp8CastTest, FiniteValuesSaturate) {
  const float largest = max_finite(GetParam());
  for (const float x : {std::nextafter(largest, kInf), largest * 1.03125F, largest * 2, FLT_MAX}) {
    EXPECT_EQ(cast(x), largest_code()) << x;
    EXPECT_EQ(cast(-x), largest_code() | 0x80) << x;
  }
}

TEST_P(Fp8CastTest, ZeroAndVanishingValuesKeepTheirSign) {
  for (const float x : {0.0F, FLT_MIN, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_EQ(cast(x), 0x00);
    EXPECT_EQ(cast(-x), 0x80);
  }
  EXPECT_TRUE(std::signbit(value(0x80)));
}

TEST_P(Fp8CastTest, NansOfEitherSignWriteTheOneNanCode) {
  const std::uint8_t nan = nan_code(GetParam());
  EXPECT_TRUE(std::isnan(value(nan)));
  for (const std::uint32_t bits :
       {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0xFF800001U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    EXPECT_EQ(cast(std::bit_cast<float>(bits)), nan) << std::hex << bits;
  }
}

TEST(Fp8Cast, InfinityIsNanInE4m3AndItselfInE5m2) {
  EXPECT_EQ(to_fp8(kInf, DType::kE4M3), 0x7F);
  EXPECT_EQ(to_fp8(-kInf, DType::kE4M3), 0x7F);
  EXPECT_EQ(to_fp8(kInf, DType::kE5M2), 0x7C);
  EXPECT_EQ(to_fp8(-kInf, DType::kE5M2), 0xFC);
}

// The values are from OFP8 1.0, table 2.
TEST(Fp8Cast, CodesHaveTheSpecifiedValues) {
  EXPECT_EQ(from_fp8(0x01, DType::kE4M3), 0x1p-9F);
  EXPECT_EQ(from_fp8(0x07, DType::kE4M3), 0x1.Cp-7F);
  EXPECT_EQ(from_fp8(0x08, DType::kE4M3), 0x1p-6F);
  EXPECT_EQ(from_fp8(0x38, DType::kE4M3), 1.0F);
  EXPECT_EQ(from_fp8(0xFE, DType::kE4M3), -448.0F);
  EXPECT_TRUE(std::isnan(from_fp8(0xFF, DType::kE4M3)));
  EXPECT_EQ(from_fp8(0x01, DType::kE5M2), 0x1p-16F);
  EXPECT_EQ(from_fp8(0x03, DType::kE5M2), 0x1.8p-15F);
  EXPECT_EQ(from_fp8(0x04, DType::kE5M2), 0x1p-14F);
  EXPECT_EQ(from_fp8(0x3C, DType::kE5M2), 1.0F);
  EXPECT_EQ(from_fp8(0xFB, DType::kE5M2), -57344.0F);
  EXPECT_EQ(from_fp8(0x7C, DType::kE5M2), kInf);
  for (const int code : {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}) {
    EXPECT_TRUE(std::isnan(from_fp8(static_cast<std::uint8_t>(code), DType::kE5M2))) << code;
  }
}

TEST(HalfCast, EveryBf16SurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float x = bf16_to_float(half);
    ASSERT_EQ(float_to_bf16(x), std::isnan(x) ? 0x7FFF : half) << std::hex << bits;
  }
}

TEST(HalfCast, EveryFp16SurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float x = fp16_to_float(half);
    ASSERT_EQ(float_to_fp16(x), std::isnan(x) ? 0x7FFF : half) << std::hex << bits;
  }
}

TEST(HalfCast, Fp16CodesHaveTheSpecifiedValues) {
  EXPECT_EQ(fp16_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(fp16_to_float(0x03FF), 0x1.FF8p-15F);
  EXPECT_EQ(fp16_to_float(0x0400), 0x1p-14F);
  EXPECT_EQ(fp16_to_float(0xBC00), -1.0F);
  EXPECT_EQ(fp16_to_float(0x7BFF), 65504.0F);
  EXPECT_EQ(fp16_to_float(0xFC00), -kInf);
}

TEST(HalfCast, RoundsToNearestEvenAndOverflowsToInfinity) {
  EXPECT_EQ(float_to_bf16(0x1.01p0F), 0x3F80);  // tie to even
  EXPECT_EQ(float_to_bf16(0x1.03p0F), 0x3F82);  // tie to even, upward
  EXPECT_EQ(float_to_bf16(0x1.010002p0F), 0x3F81);
  EXPECT_EQ(float_to_bf16(FLT_MAX), 0x7F80);
  EXPECT_EQ(float_to_bf16(kNan), 0x7FFF);
  EXPECT_EQ(float_to_fp16(65519.996F), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_fp16(-kInf), 0xFC00);
  EXPECT_EQ(float_to_fp16(0x1p-25F), 0x0000);  // tie to even
  EXPECT_EQ(float_to_fp16(0x1.8p-24F), 0x0002);
  EXPECT_EQ(float_to_fp16(0x1.002p0F), 0x3C00);
  EXPECT_EQ(float_to_fp16(0x1.006p0F), 0x3C02);
  EXPECT_EQ(float_to_fp16(kNan), 0x7FFF);
}

TEST(LoadAsFloat, ReadsEveryElementType) {
  const std::uint8_t fp8[] = {0x00, 0x38};
  const std::uint16_t bf16[] = {0, 0x3F80};
  const std::uint16_t fp16[] = {0, 0x3C00};
  const float fp32[] = {0, 1};
  EXPECT_EQ(load_as_float(fp8, DType::kE4M3, 1), 1.0F);
  EXPECT_EQ(load_as_float(fp8, DType::kE5M2, 1), 0.5F);
  EXPECT_EQ(load_as_float(bf16, DType::kBF16, 1), 1.0F);
  EXPECT_EQ(load_as_float(fp16, DType::kFP16, 1), 1.0F);
  EXPECT_EQ(load_as_float(fp32, DType::kFP32, 1), 1.0F);
}

}  // namespace
}  // namespace octile::reference
