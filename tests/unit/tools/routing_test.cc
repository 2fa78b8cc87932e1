// How `octile bench experts` shares out rows.
#include "tools/bench/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace octile::tools {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
std::int64_t largest(const Counts& counts) { return *std::ranges::max_element(counts); }
auto empty_of(const Counts& counts) { return std::ranges::count(counts, 0); }

TEST(Routing, NoRowIsLost) {
  for (const Routing routing : {Routing::kUniform, Routing::kSkewed}) {
    for (const std::int64_t experts : {1, 2, 3, 16, 32, 1024}) {
      for (const std::int64_t rows : {0, 1, 5, 1001, 65536}) {
        const Counts counts = route(routing, rows, experts);
        ASSERT_EQ(counts.size(), static_cast<std::size_t>(experts));
        EXPECT_EQ(sum(counts), rows) << name_of(routing) << ", " << experts << " experts";
        EXPECT_GE(*std::ranges::min_element(counts), 0);
      }
    }
  }
}

// 65536 rows by 32 experts: 2048 each, with a standard deviation of 45.
TEST(Routing, UniformVariesALittle) {
  const Counts counts = route(Routing::kUniform, 65536, 32);
  for (const std::int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 2048, 225);
  EXPECT_NE(largest(counts), 2048);
}

TEST(Routing, SkewedHasOnePopularAndAThirdEmpty) {
  for (const std::int64_t experts : {3, 16, 32, 256}) {
    const Counts counts = route(Routing::kSkewed, 65536, experts);
    EXPECT_EQ(empty_of(counts), experts / 3);
    EXPECT_EQ(std::ranges::count(counts, 65536 * 2 / 5), 1) << experts;
  }
  EXPECT_EQ(largest(route(Routing::kSkewed, 65536, 32)), 26214);
}

TEST(Routing, SkewedGivesTheOnlyExpertAllRows) {
  EXPECT_EQ(route(Routing::kSkewed, 100, 1), Counts{100});
}

TEST(Routing, IsTheSameEveryTime) {
  for (const Routing routing : {Routing::kUniform, Routing::kSkewed}) {
    EXPECT_EQ(route(routing, 1000, 16), route(routing, 1000, 16));
  }
}

TEST(Routing, OffsetsBeginWhereTheExpertBeforeEnds) {
  EXPECT_EQ(offsets_of({3, 0, 5}), (std::vector<std::int32_t>{0, 3, 3, 8}));
}

}  // namespace
}  // namespace octile::tools
