// Tests of the names that a process has among those of other hosts.
#include "cache/process_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace octile::cache {
namespace {

TEST(ProcessIdentity, IsThatOfAChildAndFitsIntoFileNames) {
  FileOps ops;
  const ProcessIdentity self = this_process(ops);
  EXPECT_THAT(self.place, ::testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_THAT(self.host, ::testing::MatchesRegex("[-_0-9A-Za-z]+"));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(this_process(ops).place == self.place ? 0 : 1);
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace octile::cache
