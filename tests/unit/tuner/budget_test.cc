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

TEST_F(BudgetTest, PlentyIsSharedByNeedAndUnspentTimeFlowsOn) {
  const Budget all(clock(), 100);
  const Allotment allotment({1, 3, 1});
  EXPECT_DOUBLE_EQ(allotment.share(all, 0).left(), 20);
  now_ += 10;  // half of the budget
  EXPECT_DOUBLE_EQ(allotment.share(all, 1).left(), 67.5);
  now_ += 80;
  EXPECT_DOUBLE_EQ(allotment.share(all, 2).left(), 10);
}

TEST_F(BudgetTest, OfTooLittleTheFirstGetWhatTheyNeed) {
  const Budget all(clock(), 5);
  const Allotment allotment({2, 2, 2, 2});
  EXPECT_DOUBLE_EQ(allotment.share(all, 0).left(), 2);
  now_ += 2;
  EXPECT_DOUBLE_EQ(allotment.share(all, 1).left(), 2);
  now_ += 2;
  EXPECT_DOUBLE_EQ(allotment.share(all, 2).left(), 1);
  now_ += 1;
  EXPECT_DOUBLE_EQ(allotment.share(all, 3).left(), 0);
}

TEST_F(BudgetTest, ADecisionNeedsWhatItsCandidatesAndItsRaceTake) {
  const auto seconds = [](const Effort& effort) { return needed_seconds(effort).all(); };
  EXPECT_NEAR(seconds({48, 10, 2, 1e6, 16}), 1.4, 0.1)
      << "as measured, with the GEMMs that are timed beside";
  EXPECT_GT(seconds({48, 10, 2, 0, 2}), 3 * seconds({48, 10, 2, 0, 16}));
  EXPECT_LT(seconds({18, 10, 2, 0, 16}), seconds({48, 10, 2, 0, 16}));
  EXPECT_GT(seconds({48, 5000, 1, 0, 16}), 2);
  EXPECT_GT(seconds({48, 5000, 2, 0, 16}), seconds({48, 5000, 1, 0, 16})) << "two sets of operands";
  EXPECT_GT(seconds({48, 5000, 1, 1.5e10, 16}), seconds({48, 5000, 1, 0, 16}) + 2)
      << "operands are made, and results looked at";
  EXPECT_DOUBLE_EQ(seconds({48, 1, 2, 0, 16}), seconds({48, 100, 2, 0, 16}))
      << "short calls are repeated";
}

TEST_F(BudgetTest, ARunCompilesBesideWhatIsTimed) {
  EXPECT_DOUBLE_EQ(seconds_of_run({{1, 2}}), 3);
  EXPECT_DOUBLE_EQ(seconds_of_run({{1, 2}, {1, 2}, {1, 2}}), 7);
  EXPECT_DOUBLE_EQ(seconds_of_run({{3, 2}, {3, 2}, {3, 2}}), 9) << "where compiling is the longer";
}

}  // namespace
}  // namespace octile::tuner
