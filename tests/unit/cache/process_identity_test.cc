// Tests of whether a process that another one names still runs.
#include "cache/process_identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace octile::cache {
namespace {

TEST(ProcessIdentity, AProcessOfThisPlaceHasEndedOnceItIsGone) {
  FileOps ops;
  const ProcessIdentity self = this_process(ops);
  ASSERT_FALSE(self.place.empty());
  EXPECT_FALSE(has_ended(ops, self, self));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_GT(child, 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ProcessIdentity dead = self;
  dead.number = child;
  EXPECT_TRUE(has_ended(ops, dead, self));
  dead.place = "elsewhere";
  EXPECT_FALSE(has_ended(ops, dead, self)) << "only a process of the same place can know";
  ProcessIdentity replaced = self;
  replaced.started += 1;
  EXPECT_TRUE(has_ended(ops, replaced, self)) << "another process has its number";
}

}  // namespace
}  // namespace octile::cache
