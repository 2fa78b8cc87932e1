// The sweep of `octile bench quantize`.
#include "tools/bench/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octile::tools {
namespace {

using ::testing::HasSubstr;

TEST(QuantizeSweep, RowsAreThePowersOfTwoUpTo4096) {
  const std::vector<std::int64_t> rows = sweep_rows();
  EXPECT_EQ(rows.size(), 13U);
  EXPECT_EQ(rows.front(), 1);
  EXPECT_EQ(rows.back(), 4096);
}

TEST(QuantizeSweep, EveryWidthHasEveryProblemOfAnyRowCount) {
  const auto one = sweep_problems({7168}, {});
  const auto three = sweep_problems({1536, 7168, 18432}, {});
  ASSERT_TRUE(one && three);
  EXPECT_EQ(three->size(), 3 * one->size());
  for (const Problem& problem : *three) {
    EXPECT_THAT(to_text(problem), HasSubstr("rows=?"));
  }
}

TEST(QuantizeSweep, SelectedProblemsContainAWord) {
  const auto fused = sweep_problems({4096}, {"src=", "group="});
  ASSERT_TRUE(fused);
  for (const Problem& problem : *fused) {
    EXPECT_THAT(to_text(problem), ::testing::AnyOf(HasSubstr("src="), HasSubstr("group=")));
  }
  EXPECT_EQ(fused->size(), 3U);
}

TEST(QuantizeSweep, RefusalsNameTheWidthAndTheWord) {
  const auto narrow = sweep_problems({0}, {});
  ASSERT_FALSE(narrow);
  EXPECT_THAT(narrow.error().message, HasSubstr("--cols is 0"));
  const auto nothing = sweep_problems({7168}, {"2x64"});
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message, HasSubstr("--select is '2x64'"));
}

TEST(QuantizeSweep, TheBoundIsTheStreamsTimeAndTheAllowance) {
  Record record;
  record.peers = {{"stream", "", Measured{{}, 2.25, {}}, {}}};
  EXPECT_DOUBLE_EQ(bound_us(record), 2.75);
}

}  // namespace
}  // namespace octile::tools
