#include "runtime/tuner/rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace octile::tuner {
namespace {

constexpr double kNoise = 0.003;

// Returns finalists of these times in microseconds, numbered from 0, each known to `width`.
std::vector<Finalist> finalists(const std::vector<double>& us, double width = 0.001) {
  const double best = *std::ranges::min_element(us);
  std::vector<Finalist> all;
  for (const double one : us) {
    const double behind = one / best, gain = us.front() / one;
    all.push_back({static_cast<int>(all.size()),
                   behind,
                   {one == best ? 1 : behind - width, one == best ? 1 : behind + width},
                   gain,
                   {gain - width, gain + width}});
  }
  return all;
}

std::size_t winner(const std::vector<double>& us, std::optional<int> incumbent = {}) {
  return place_of_winner(finalists(us), incumbent, Allowances(), kNoise);
}

bool settled(const std::vector<double>& us, std::optional<int> incumbent = {},
             double width = 0.001) {
  return is_settled(finalists(us, width), incumbent, Allowances());
}

TEST(Rule, TheDefaultStaysUnlessItIsOnePercentBehind) {
  EXPECT_EQ(winner({10.09, 10.2, 10}), 0);
  EXPECT_EQ(winner({10.12, 10.2, 10}), 2);
  EXPECT_EQ(winner({10}), 0);
}

TEST(Rule, OfThoseWithinHalfAPercentOfTheFastestTheFirstWins) {
  EXPECT_EQ(winner({11, 10.06, 10.04, 10.01, 10}), 2);
  EXPECT_EQ(winner({11, 10.06, 10.051, 10, 9.9999}), 3);
}

TEST(Rule, TheIncumbentStaysUnlessItIsOneAndAHalfPercentBehind) {
  EXPECT_EQ(winner({11, 10, 10.2, 10.14}, 3), 3);
  EXPECT_EQ(winner({11, 10, 10.2, 10.17}, 3), 1);
  EXPECT_EQ(winner({10.05, 10, 10.2, 10.04}, 3), 3) << "it precedes the default";
  EXPECT_EQ(winner({10.14, 10, 10.2, 10.3}, 0), 0) << "the default is the incumbent";
  EXPECT_EQ(winner({11, 10, 10.2}, 7), 1) << "one that takes no part";
}

TEST(Rule, TheIncumbentIsNotSlowerThanTheDefault) {
  EXPECT_EQ(winner({10.05, 10, 10.06}, 2), 0);
  EXPECT_EQ(winner({10.12, 10, 10.13}, 2), 1);
}

TEST(Rule, WhatIsThereStaysUnlessItIsCertainlyBehind) {
  std::vector<Finalist> all = finalists({11, 10, 10.2, 10.3});
  EXPECT_EQ(place_of_winner(all, 3, Allowances(), kNoise), 1U);
  all[3].over_best_interval.lo = 1.014;
  EXPECT_EQ(place_of_winner(all, 3, Allowances(), kNoise), 3U);
  EXPECT_FALSE(is_settled(all, 3, Allowances()));
  all[0].over_best_interval.lo = 1.009;
  EXPECT_EQ(place_of_winner(all, {}, Allowances(), kNoise), 0U);
}

TEST(Rule, AWinnerCertainlyBeatsTheDefault) {
  std::vector<Finalist> all = finalists({10.2, 10, 10.01});
  all[1].gain_interval.lo = 0.99;
  EXPECT_EQ(place_of_winner(all, {}, Allowances(), kNoise), 2U);
  all[2].gain = 1.002;
  EXPECT_EQ(place_of_winner(all, {}, Allowances(), kNoise), 0U);
}

TEST(Rule, NothingIsToldApartBelowTheNoise) {
  const Allowances wide = Allowances().at_least(0.02);
  EXPECT_EQ(place_of_winner(finalists({10.19, 10, 10.1}), {}, wide, 0.02), 0U);
  EXPECT_EQ(place_of_winner(finalists({10.5, 10.19, 10}), {}, wide, 0.02), 1U);
  const Allowances quiet = Allowances().at_least(0.001);
  EXPECT_EQ(quiet.tie, Allowances().tie);
  EXPECT_EQ(quiet.incumbent, Allowances().incumbent);
}

TEST(Rule, ItIsSettledWhereNoIntervalHoldsABound) {
  EXPECT_TRUE(settled({10.05, 10.2, 10})) << "the default stays";
  EXPECT_FALSE(settled({10.105, 10.2, 10})) << "one percent behind, give or take";
  EXPECT_TRUE(settled({11, 10.2, 10}));
  EXPECT_FALSE(settled({11, 10.055, 10})) << "a tie or not";
  EXPECT_TRUE(settled({11, 10.02, 10.055, 10})) << "the first tie wins, also if later ones follow";
}

TEST(Rule, AnIncumbentThatCertainlyStaysSettlesIt) {
  EXPECT_TRUE(settled({10.105, 10, 10.055, 10.1}, 3));
  EXPECT_FALSE(settled({11, 10, 10.2, 10.155}, 3));
  EXPECT_FALSE(settled({10.05, 10, 10.2, 10.155}, 3)) << "it or the default";
  EXPECT_TRUE(settled({11, 10, 10.2, 10.3}, 3));
}

// No draw within the intervals of a settled final, with narrower intervals, has another winner.
TEST(Rule, SettledIsSettled) {
  const auto later = [](const std::vector<double>& us) {
    return place_of_winner(finalists(us, 0.00005), {}, Allowances(), kNoise);
  };
  int seen = 0;
  for (double a = 10; a < 10.3; a += 0.013) {
    for (double b = 10; b < 10.2; b += 0.017) {
      const std::vector<double> us{a, b, 10};
      if (!settled(us)) continue;
      ++seen;
      EXPECT_EQ(winner(us), later(us)) << a << " " << b;
      for (const double moved : {-0.0009, 0.0009}) {
        EXPECT_EQ(later({a * (1 + moved), b, 10}), winner(us)) << a << " " << b;
        EXPECT_EQ(later({a, b * (1 + moved), 10}), winner(us)) << a << " " << b;
      }
    }
  }
  EXPECT_GT(seen, 100);
}

}  // namespace
}  // namespace octile::tuner
