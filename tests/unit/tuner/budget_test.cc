#include <gtest/gtest.h>

#include "runtime/tuner/budget.h"

namespace octile::tuner {
namespace {

class BudgetTest : public ::testing::Test {
 protected:
  Clock clock() {
    return [this] { return now_; };
  }
  double now_ = 1000;
};

TEST_F(BudgetTest, RunsOutAndStaysOut) {
  const Budget budget(clock(), 10);
  EXPECT_DOUBLE_EQ(budget.left(), 10);
  now_ += 4;
  EXPECT_DOUBLE_EQ(budget.left(), 6);
  EXPECT_TRUE(budget.allows(6));
  EXPECT_FALSE(budget.allows(6.1));
  now_ += 100;
  EXPECT_DOUBLE_EQ(budget.left(), 0);
  EXPECT_FALSE(budget.allows(0.001));
}

TEST_F(BudgetTest, APartNeverOutlivesTheWhole) {
  const Budget budget(clock(), 10);
  EXPECT_DOUBLE_EQ(budget.part(3).left(), 3);
  EXPECT_DOUBLE_EQ(budget.part(30).left(), 10);
}

TEST_F(BudgetTest, SharesFollowValuesAndUnspentTimeFlowsOn) {
  const Budget all(clock(), 100);
  const Allotment allotment({1, 3, 1});
  EXPECT_DOUBLE_EQ(allotment.share(all, 0).left(), 20);
  now_ += 10;  // half of the budget
  EXPECT_DOUBLE_EQ(allotment.share(all, 1).left(), 67.5);
  now_ += 80;
  EXPECT_DOUBLE_EQ(allotment.share(all, 2).left(), 10);
}

TEST_F(BudgetTest, ValueGrowsSlowerThanTime) {
  EXPECT_GT(value_of(1000, 3), value_of(10, 3));
  EXPECT_LT(value_of(1000, 3) / value_of(10, 3), 100);
  EXPECT_GT(value_of(0, 3), 0);
}

TEST_F(BudgetTest, TheFirstDecisionsGetTimeToCompile) {
  EXPECT_GT(value_of(10, 0), 3 * value_of(10, 20));
  EXPECT_GT(value_of(10, 1), value_of(10, 2));
  EXPECT_LT(value_of(10, 20) / value_of(10, 1000), 1.5);
}

}  // namespace
}  // namespace octile::tuner
