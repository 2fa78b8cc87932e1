// The exact sum of squares of a GEMM's sentry.
#include "runtime/reference/gemm/squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace octile {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double sum_of(const std::vector<float>& terms) {
  octile_squares squares{};
  for (const float term : terms) add_squares(squares, term);
  return sum_of_squares(squares);
}

TEST(GemmSquares, OneTermIsItself) {
  EXPECT_EQ(sum_of({}), 0.0);
  for (const float x : {0.0F, 1.0F, 0x1p-149F, 0x1.8p-140F, 0x1p-126F, 0x1.fffffep127F, 3.14159F,
                        0x1.000002p31F, 0x1.234566p-33F}) {
    EXPECT_EQ(sum_of({x}), static_cast<double>(x)) << x;
  }
}

// Terms whose sum double holds are summed to it, in any order.
TEST(GemmSquares, ExactSums) {
  EXPECT_EQ(sum_of({0x1p30F, 1.0F, 0x1p-22F}), 0x1p30 + 1 + 0x1p-22);
  EXPECT_EQ(sum_of({0x1p-22F, 0x1p30F, 1.0F}), 0x1p30 + 1 + 0x1p-22);
  EXPECT_EQ(sum_of(std::vector<float>(100000, 0x1.fffffep127F)), 100000 * 0x1.fffffep127);
  EXPECT_EQ(sum_of(std::vector<float>(70000, 0x1p-149F)), 70000 * 0x1p-149);
}

// 2^60 + 2^7 lies between two doubles; what lies below decides.
TEST(GemmSquares, RoundsToNearestEven) {
  EXPECT_EQ(sum_of({0x1p60F, 0x1p7F}), 0x1p60);
  EXPECT_EQ(sum_of({0x1p60F, 0x1p7F, 0x1p-149F}), 0x1p60 + 0x1p8);
  EXPECT_EQ(sum_of({0x1p60F, 0x1p8F, 0x1p7F}), 0x1p60 + 0x1p9);
  EXPECT_EQ(sum_of({0x1p60F, 0x1.fffffcp6F, 0x1p-149F}), 0x1p60);
}

TEST(GemmSquares, RandomSumsAgreeWithLongDouble) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> mantissa(1, 2);
  std::uniform_int_distribution<int> exponent(-20, 20);
  for (int round = 0; round < 200; ++round) {
    octile_squares squares{};
    long double expected = 0;
    for (int i = 0; i < 50; ++i) {
      // Multiples of 2^-43 below 2^27 in all: exact in 64 bits.
      const float x = std::ldexp(mantissa(random), exponent(random));
      expected += x;
      add_squares(squares, x);
    }
    EXPECT_EQ(sum_of_squares(squares), static_cast<double>(expected));
  }
}

TEST(GemmSquares, WhatIsNotFiniteMakesItInfinite) {
  EXPECT_EQ(sum_of({1.0F, kInfinity}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum_of({std::numeric_limits<float>::quiet_NaN(), 1.0F}),
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace octile
