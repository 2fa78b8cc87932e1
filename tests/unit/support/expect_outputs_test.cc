// The comparison of two outputs finds every difference and describes it.
#include "tests/support/expect_outputs.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

namespace octile::tests {
namespace {

TEST(FirstDifference, NamesTheRunsThatDiffer) {
  const std::vector<char> expected(100, 0x7f);
  EXPECT_EQ(first_difference(expected, expected), "");
  std::vector<char> actual = expected;
  for (std::size_t i = 40; i < 44; ++i) actual[i] = 0;
  EXPECT_EQ(first_difference(actual, expected),
            "4 of 100 in 1 run: [40,44); at 40 0x0, expected 0x7f");
  actual.back() = static_cast<char>(0x80);
  EXPECT_EQ(first_difference(actual, expected),
            "5 of 100 in 2 runs: [40,44), [99,100); at 40 0x0, expected 0x7f");
  for (const std::size_t i : {0U, 2U, 4U}) actual[i] = 1;
  EXPECT_EQ(first_difference(actual, expected),
            "8 of 100 in 5 runs: [0,1), [2,3), [4,5), [40,44), ...; at 0 0x1, expected 0x7f");
}

TEST(FirstDifference, ComparesBitsButForNaNs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> expected{0.0F, nan, 1.0F};
  EXPECT_EQ(first_difference({0.0F, std::bit_cast<float>(0xffffffffU), 1.0F}, expected), "");
  EXPECT_EQ(first_difference({-0.0F, nan, 1.0F}, expected),
            "1 of 3 in 1 run: [0,1); at 0 0x80000000, expected 0x0");
  EXPECT_EQ(first_difference({0.0F, 0.0F, 1.0F}, expected),
            "1 of 3 in 1 run: [1,2); at 1 0x0, expected 0x7fc00000");
}

TEST(FirstDifference, SeesALengthThatIsNotTheSame) {
  EXPECT_EQ(first_difference<char>({1, 2}, {1, 2, 3}), "2 elements, expected 3");
}

}  // namespace
}  // namespace octile::tests
