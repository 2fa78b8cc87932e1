// The buckets of token counts.
#include "generator/cost_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace octile {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::int64_t upper_of(std::int64_t tokens) { return bucket_upper(bucket_of(tokens)); }

TEST(TokenBuckets, ATokenCountBelongsToTheNextEdge) {
  const struct {
    std::int64_t tokens, upper;
  } kCases[] = {
      {0, 1},
      {1, 1},
      {2, 2},
      {3, 4},
      {4, 4},
      {5, 8},
      {64, 64},
      {65, 128},
      {127, 128},
      {128, 128},
      {129, 192},
      {192, 192},
      {193, 256},
      {256, 256},
      {257, 384},
      {300, 384},
      {384, 384},
      {385, 512},
      {512, 512},
      {513, 768},
      {1024, 1024},
      {1025, 1280},
      {1281, 1536},
      {2048, 2048},
      {5000, 5120},
      {5121, 6144},
      {7169, 8192},
      {(std::int64_t{1} << 62) - 1, std::int64_t{1} << 62},
      {std::int64_t{1} << 62, std::int64_t{1} << 62},
      {(std::int64_t{1} << 62) + 1, std::int64_t{5} << 60},
      {std::int64_t{5} << 60, std::int64_t{5} << 60},
      {std::int64_t{7} << 60, std::int64_t{7} << 60},
      {(std::int64_t{7} << 60) + 1, kMost},
      {kMost, kMost},
  };
  for (const auto& c : kCases) EXPECT_EQ(upper_of(c.tokens), c.upper) << c.tokens;
}

TEST(TokenBuckets, EdgesRiseAndEndTheirBuckets) {
  std::vector<std::int64_t> edges;
  for (int bucket = 0; bucket < kTokenBuckets; ++bucket) {
    edges.push_back(bucket_upper(bucket));
    EXPECT_EQ(bucket_of(edges.back()), bucket);
    if (bucket == 0) continue;
    const std::int64_t before = edges[edges.size() - 2];
    EXPECT_LT(before, edges.back());
    EXPECT_EQ(bucket_of(before + 1), bucket) << "no count lies between two buckets";
  }
  edges.resize(19);
  EXPECT_EQ(edges, (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768,
                                              1024, 1280, 1536, 1792, 2048, 2560}));
}

TEST(TokenBuckets, TheirOrderIsThatOfTheCounts) {
  for (std::int64_t tokens = 0; tokens < 70000; ++tokens) {
    ASSERT_LE(bucket_of(tokens), bucket_of(tokens + 1)) << tokens;
    ASSERT_GE(upper_of(tokens), tokens);
    if (tokens > 128) {
      ASSERT_LT(2 * upper_of(tokens), 3 * tokens) << "at most half as many again";
    }
    if (tokens > 1024) {
      ASSERT_LT(4 * upper_of(tokens), 5 * tokens) << "at most a quarter";
    }
  }
}

}  // namespace
}  // namespace octile
