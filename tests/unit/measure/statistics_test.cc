#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

#include "runtime/measure/statistics.h"
#include "runtime/reference/synthetic.h"

namespace octile {
namespace {

std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST(Statistics, QuantilesInterpolate) {
  EXPECT_DOUBLE_EQ(quantile({5, 1, 3, 2, 4}, 0.1), 1.4);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({7}), 7);
}

// Ranks of the sign test's table (two-sided, 5 %): n = 6: 1 and 6; 8: 1 and 8; 9: 2 and 8; 12: 3
// and 10; 20: 6 and 15; 25: 8 and 18.
TEST(Statistics, IntervalsHaveTheRanksOfTheSignTest) {
  const auto expect = [](int n, double lo, double hi) {
    const Interval interval = median_interval(one_to(n));
    EXPECT_EQ(interval.lo, lo) << n;
    EXPECT_EQ(interval.hi, hi) << n;
  };
  expect(1, 1, 1);
  expect(5, 1, 5);
  expect(6, 1, 6);
  expect(8, 1, 8);
  expect(9, 2, 8);
  expect(12, 3, 10);
  expect(20, 6, 15);
  expect(25, 8, 18);
}

TEST(Statistics, IntervalsHoldTheMedianAsOftenAsTheySay) {
  constexpr int kTrials = 2000;
  constexpr std::uint64_t kValues = 15;
  int held = 0;
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values;
    for (std::uint64_t i = 0; i < kValues; ++i)
      values.push_back(reference::random_uniform(3, trial * kValues + i));
    const Interval interval = median_interval(values);
    held += interval.lo <= 0.5 && 0.5 <= interval.hi ? 1 : 0;
  }
  // The binomial law gives 96.5 %; three standard deviations of 2000 trials are 1.2 %.
  EXPECT_NEAR(static_cast<double>(held) / kTrials, 0.965, 0.0125);
}

}  // namespace
}  // namespace octile
