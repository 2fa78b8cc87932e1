#include "generator/core/elementary.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace octile {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Returns |got - rounded| in units of the last place of `rounded`, the correctly rounded value of
// `exact`.
double ulps(float got, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (got == rounded) return 0;
  constexpr double kBeyond = 0x1p128;  // stands for fp32's infinity
  const auto finite = [](float x) {
    return std::isinf(x) ? std::copysign(kBeyond, x) : static_cast<double>(x);
  };
  const double magnitude = std::min(std::fabs(finite(rounded)), 0x1.fffffep127);
  const double ulp = magnitude < 0x1p-126 ? 0x1p-149 : std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::fabs(finite(got) - finite(rounded)) / ulp;
}

// Calls f(x) for finite x of every exponent and both signs, with a prime step through the bits.
template <typename F>
void for_each_finite(F f) {
  constexpr std::uint64_t kStep = 4093;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += kStep) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isfinite(x)) f(x);
  }
}

TEST(Elementary, ExpAndTanhAreWithinTwoUlp) {
  double of_exp = 0, of_tanh = 0;
  for_each_finite([&](float x) {
    of_exp = std::max(of_exp, ulps(elementary::exp(x), std::exp(static_cast<double>(x))));
    of_tanh = std::max(of_tanh, ulps(elementary::tanh(x), std::tanh(static_cast<double>(x))));
  });
  EXPECT_LE(of_exp, 1);  // measured over every fp32
  EXPECT_LE(of_tanh, 2);
}

TEST(Elementary, SigmoidIsWithinTwoUlp) {
  double most = 0;
  for_each_finite([&](float x) {
    const float s = elementary::sigmoid(x);
    if (x < -87) {
      EXPECT_EQ(s, elementary::sigmoid(-87)) << x;
    } else {
      most = std::max(most, ulps(s, 1 / (1 + std::exp(-static_cast<double>(x)))));
    }
  });
  EXPECT_LE(most, 2);
  EXPECT_NEAR(elementary::sigmoid(-87), 1.6e-38, 1e-39);
}

// Measured over every ninth fp32.
TEST(Elementary, NormalDistributionIsWithinAFewUlp) {
  double of_cdf = 0, of_pdf = 0;
  const double root_of_two = std::sqrt(2.0), root_of_two_pi = std::sqrt(2 * std::acos(-1.0));
  for_each_finite([&](float x) {
    const double exact = static_cast<double>(x);
    if (x < -12.9F) {
      EXPECT_EQ(elementary::normcdf(x), elementary::normcdf(-12.9F)) << x;
    } else {
      of_cdf = std::max(of_cdf, ulps(elementary::normcdf(x), std::erfc(-exact / root_of_two) / 2));
    }
    if (std::fabs(x) > 12.9F) {
      EXPECT_EQ(elementary::normpdf(x), elementary::normpdf(12.9F)) << x;
    } else {
      of_pdf = std::max(
          of_pdf, ulps(elementary::normpdf(x), std::exp(-exact * exact / 2) / root_of_two_pi));
    }
  });
  EXPECT_LE(of_cdf, 6);
  EXPECT_LE(of_pdf, 3);
  EXPECT_EQ(elementary::normcdf(0), 0.5F);
  EXPECT_NEAR(elementary::normcdf(-12.9F), 2.2e-38, 1e-39);
  EXPECT_NEAR(elementary::normpdf(12.9F), 2.9e-37, 1e-38);
}

TEST(Elementary, LimitsAreKept) {
  EXPECT_EQ(elementary::exp(kInf), kInf);
  EXPECT_EQ(elementary::exp(-kInf), 0);
  EXPECT_EQ(elementary::exp(0), 1);
  EXPECT_EQ(elementary::tanh(kInf), 1);
  EXPECT_EQ(elementary::tanh(-kInf), -1);
  EXPECT_TRUE(std::signbit(elementary::tanh(-0.0F)));
  EXPECT_EQ(elementary::sigmoid(kInf), 1);
  EXPECT_EQ(elementary::normcdf(kInf), 1);
  for (const auto f : {elementary::exp, elementary::tanh, elementary::sigmoid, elementary::rsqrt,
                       elementary::normcdf, elementary::normpdf}) {
    EXPECT_TRUE(std::isnan(f(NAN)));
  }
  EXPECT_EQ(elementary::rsqrt(0), kInf);
  EXPECT_EQ(elementary::rsqrt(-0.0F), -kInf);
  EXPECT_EQ(elementary::rsqrt(kInf), 0);
  EXPECT_TRUE(std::isnan(elementary::rsqrt(-1)));
}

// y = rsqrt(x) is the nearest if (y - ulp/2)^2 x < 1 < (y + ulp/2)^2 x, computed in integers. A
// factor of four changes only the exponent, so the significands of two binades cover every case.
TEST(Elementary, RsqrtIsCorrectlyRoundedForEverySignificand) {
  using Wide = unsigned __int128;
  std::int64_t wrong = 0;
  for (std::uint32_t i = 0; i < (1U << 24); ++i) {
    const float x = std::bit_cast<float>(0x3f800000U + i);  // in 1..4
    const float y = elementary::rsqrt(x);                   // in 1/2..1
    // x = sx * 2^-23; y = sy * 2^-24, and half an ulp of y is 2^-25.
    const auto sx = static_cast<Wide>(std::ldexp(static_cast<double>(x), 23));
    const auto sy = static_cast<Wide>(std::ldexp(static_cast<double>(y), 25));
    const Wide one = Wide{1} << (23 + 50);
    if (x == 1) {
      EXPECT_EQ(y, 1);
      continue;
    }
    wrong += (sy - 1) * (sy - 1) * sx < one && one < (sy + 1) * (sy + 1) * sx ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace octile
