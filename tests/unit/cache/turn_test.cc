// Turns of threads and processes, and what is left of them.
#include "cache/turn.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using testing::TempDir;
namespace fs = std::filesystem;

TEST(Turn, IsOnesUntilItIsGivenBack) {
  const TempDir dir;
  const std::string root = dir / "root";
  Turn a(root, "gpu-1"), b(root, "gpu-1"), other(root, "gpu-2");
  EXPECT_FALSE(a.is_mine());
  EXPECT_EQ(a.try_take(), TurnState::kMine);
  EXPECT_EQ(a.try_take(), TurnState::kMine) << "it is kept";
  EXPECT_EQ(b.try_take(), TurnState::kTaken);
  EXPECT_EQ(other.try_take(), TurnState::kMine);
  a.give_back();
  EXPECT_EQ(b.try_take(), TurnState::kMine);
  {
    const Turn moved = std::move(b);
  }
  EXPECT_EQ(a.try_take(), TurnState::kMine) << "the end of its object gives it back";
  EXPECT_EQ(fs::file_size(root + "/turns/gpu-1"), 0U);
}

TEST(Turn, SaysThatItFailedAsLongAsItLasts) {
  const TempDir dir;
  const std::string root = dir / "root";
  Turn a(root, "question"), b(root, "question");
  b.fail();
  EXPECT_EQ(a.try_take(), TurnState::kMine) << "who does not have it says nothing";
  a.fail();
  EXPECT_EQ(b.try_take(), TurnState::kFailed);
  a.give_back();
  EXPECT_EQ(b.try_take(), TurnState::kMine);
  EXPECT_EQ(a.try_take(), TurnState::kTaken) << "the word was of the turn before";
}

TEST(Turn, OfAProcessThatIsKilledIsFree) {
  const TempDir dir;
  const std::string root = dir / "root";
  const pid_t child = ::fork();
  if (child == 0) {
    Turn turn(root, "question");
    (void)turn.try_take();
    (void)::raise(SIGKILL);
  }
  ASSERT_GT(child, 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs::exists(root + "/turns/question"));
  EXPECT_EQ(Turn(root, "question").try_take(), TurnState::kMine);
}

TEST(Turn, IsEverybodysWhereThereIsNobodyToShareWith) {
  Turn a("", "question"), b("", "question");
  EXPECT_EQ(a.try_take(), TurnState::kMine);
  EXPECT_EQ(b.try_take(), TurnState::kMine);
}

// A file system that grants no lock, and a lock file that another user may write.
TEST(Turn, WithoutLocksIsEverybodysAndARefusedFileIsAnError) {
  const TempDir dir;
  const std::string root = dir / "root";
  const auto ops = std::make_shared<testing::HookedOps>([](testing::Op op) {
    return op == testing::Op::kLock ? std::optional(ENOLCK) : std::nullopt;
  });
  Turn a(root, "question", ops), b(root, "question", ops);
  EXPECT_EQ(a.try_take(), TurnState::kMine);
  EXPECT_EQ(b.try_take(), TurnState::kMine);
  a.give_back();
  fs::permissions(root + "/turns/question", fs::perms::all);
  const auto refused = a.try_take();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().sentence.find("turns/question"), std::string::npos);
}

}  // namespace
}  // namespace octile::cache
