#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "generator/families.h"
#include "runtime/engine/engine.h"
#include "runtime/prove/shortlist.h"

namespace octile::tuner {
namespace {

using ::testing::DoubleEq;

double between(std::string_view x, std::string_view y) {
  return distance(ConfigPoint(x), ConfigPoint(y));
}

TEST(ConfigDistance, CountsEveryFieldAtMostOnce) {
  EXPECT_EQ(between("tile=128x128x128 store=tma", "tile=128x128x128 store=tma"), 0);
  EXPECT_EQ(between("tile=128x128x128", "tile=64x128x128"), 1);
  EXPECT_EQ(between("tile=128x128x128", "tile=16x128x128"), 1) << "not 3";
  EXPECT_EQ(between("tile=128x64x128", "tile=64x128x128"), 2);
  EXPECT_EQ(between("store=tma", "store=direct"), 1);
  EXPECT_EQ(between("a=0", "a=1"), 1) << "no logarithm of 0";
  EXPECT_EQ(between("a=1", "a=1 b=2"), 1);
  EXPECT_NEAR(between("stages=4", "stages=5"), 0.32, 0.01);
  EXPECT_EQ(between("stages=4", "stages=5"), between("stages=5", "stages=4"));
}

class ShortlistTest : public ::testing::Test {
 protected:
  ShortlistTest() {
    problem.n = 7168;
    problem.k = 2048;
    ranked = rank(problem, kTokens, device, candidates(Problem(problem), kTokens, device).admitted);
    preferred = default_config(problem, kTokens, device);
  }
  static constexpr std::int64_t kTokens = 4096;
  GemmProblem problem;
  const DeviceSpec& device = *find_device("h200");
  std::vector<Ranked> ranked;
  KernelConfig preferred;
};

TEST_F(ShortlistTest, RanksEveryAdmittedConfiguration) {
  EXPECT_EQ(ranked.size(), candidates(Problem(problem), kTokens, device).admitted.size());
  for (const Ranked& r : ranked) EXPECT_GT(r.estimate_us, 0);
}

TEST_F(ShortlistTest, HoldsTheDefaultFirstAndNothingTwice) {
  const auto list = shortlist(ranked, preferred, {.liked = 12, .different = 4});
  ASSERT_EQ(list.size(), 16);
  EXPECT_TRUE(list.front().config == preferred);
  std::set<std::string> texts;
  for (const Ranked& r : list) texts.insert(to_text(r.config));
  EXPECT_EQ(texts.size(), list.size());
  EXPECT_TRUE(std::is_sorted(list.begin() + 1, list.end(), [](const Ranked& x, const Ranked& y) {
    return x.estimate_us < y.estimate_us;
  }));
}

TEST_F(ShortlistTest, IsNotACrowdOfOneTile) {
  const auto list = shortlist(ranked, preferred, {.liked = 12, .different = 0});
  std::map<std::pair<int, int>, int> tiles;
  for (const Ranked& r : list) {
    const auto& c = std::get<GemmConfig>(r.config);
    ++tiles[{c.block_m, c.block_n}];
  }
  EXPECT_GE(tiles.size(), 3);
}

TEST_F(ShortlistTest, TheDifferentOnesAreFarFromTheLiked) {
  const auto liked = shortlist(ranked, preferred, {.liked = 12, .different = 0});
  const auto all = shortlist(ranked, preferred, {.liked = 12, .different = 3});
  int far = 0;
  for (const Ranked& r : all) {
    double nearest = 1e9;
    for (const Ranked& other : liked)
      nearest = std::min(nearest, between(to_text(r.config), to_text(other.config)));
    far += nearest > 1.5 ? 1 : 0;
  }
  EXPECT_EQ(far, 3);
}

TEST_F(ShortlistTest, KnownWinnersJoinFewerOfTheModelAndChangeNoneOfThem) {
  // Far down the model's list, and one that is not in it: another raster.
  GemmConfig unranked = std::get<GemmConfig>(ranked.front().config);
  unranked.raster.band = 3;
  const std::vector<Ranked> winners{ranked.at(ranked.size() / 2),
                                    {unranked, ranked.front().estimate_us}};
  const ShortlistOptions options{.liked_beside_winners = 6, .different_beside_winners = 2};
  const auto list = shortlist(ranked, preferred, options, winners);
  ASSERT_EQ(list.size(), 1 + 2 + 5 + 2) << "the default, the winners, the liked, the different";
  EXPECT_EQ(list[0].config, preferred);
  EXPECT_TRUE(std::is_sorted(list.begin() + 1, list.end(), [](const Ranked& x, const Ranked& y) {
    return x.estimate_us < y.estimate_us;
  }));
  std::vector<KernelConfig> others;
  for (const Ranked& r : list) others.push_back(r.config);
  for (const Ranked& winner : winners) EXPECT_EQ(std::erase(others, winner.config), 1);
  std::vector<KernelConfig> picks;
  for (const Ranked& r : shortlist(ranked, preferred, {.liked = 6, .different = 2}))
    picks.push_back(r.config);
  EXPECT_EQ(others, picks);
  // The default as a winner is not a second candidate.
  const std::vector<Ranked> same{{preferred, 1}};
  const auto alone = shortlist(ranked, preferred, options, same);
  EXPECT_EQ(alone.size(), 1 + 5 + 2);
  EXPECT_EQ(std::ranges::count(alone, preferred, &Ranked::config), 1);
}

TEST_F(ShortlistTest, TakesWhatThereIs) {
  EXPECT_EQ(shortlist({}, preferred).size(), 1) << "the default alone";
  std::vector<Ranked> three(ranked.begin(), ranked.begin() + 3);
  three[0].config = preferred;
  EXPECT_LE(shortlist(three, preferred).size(), 3);
}

TEST_F(ShortlistTest, IsTheSameEveryTime) {
  const auto texts = [&] {
    std::vector<std::string> all;
    for (const Ranked& r : shortlist(ranked, preferred)) all.push_back(to_text(r.config));
    return all;
  };
  const auto first = texts();
  std::reverse(ranked.begin(), ranked.end());
  EXPECT_EQ(texts(), first);
}

}  // namespace
}  // namespace octile::tuner
