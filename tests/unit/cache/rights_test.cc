// Whose files a process believes that has more rights than its caller.
#include "cache/rights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "runtime/process/find_program.h"

namespace octile::cache {
namespace {

using ::testing::HasSubstr;

constexpr mode_t kFolder = S_IFDIR | 0755;
constexpr mode_t kProgram = S_IFREG | 0755;
constexpr uid_t kSomebody = 4711;

// A disk that has these paths, with these modes and owners, and nothing else.
class Disk : public FileOps {
 public:
  struct File {
    mode_t mode = kFolder;
    uid_t owner = 0;
  };
  explicit Disk(std::map<std::string, File> files) : files_(std::move(files)) {}
  int stat_at(int, const std::string& name, struct stat& out) override {
    const auto found = files_.find(name);
    if (found == files_.end()) return -ENOENT;
    out = {};
    out.st_mode = found->second.mode;
    out.st_uid = found->second.owner;
    return 0;
  }

 private:
  std::map<std::string, File> files_;
};

std::map<std::string, Disk::File> installed() {
  return {{"/", {}}, {"/usr", {}}, {"/usr/bin", {}}, {"/usr/bin/octile", {kProgram, 0}}};
}

TEST(Rights, APathOfRootIsBelieved) {
  Disk disk(installed());
  for (const char* path : {"/", "/usr", "/usr/bin", "/usr/bin/octile"}) {
    const auto checked = check_path_unwritable_by_others(disk, path);
    EXPECT_TRUE(checked) << path << ": " << checked.error().sentence;
  }
}

// Whoever may write any folder of a path can put another file there, or another folder.
TEST(Rights, APathIsRefusedForEachOfItsFolders) {
  for (const auto& [part, file] : installed()) {
    const auto refused = [&part = part](mode_t mode, uid_t owner, const std::string& why) {
      auto files = installed();
      files[part] = {mode, owner};
      Disk disk(files);
      const auto checked = check_path_unwritable_by_others(disk, "/usr/bin/octile");
      ASSERT_FALSE(checked) << part << " " << why;
      EXPECT_EQ(checked.error().code, 0);
      EXPECT_THAT(checked.error().sentence, HasSubstr(part + ": "));
      EXPECT_THAT(checked.error().sentence, HasSubstr(why));
    };
    refused(file.mode, kSomebody, "belongs to user 4711");
    refused(file.mode | S_IWGRP, 0, "its mode is 0775");
    refused(file.mode | S_IWOTH, 0, "its mode is 0757");
    refused(S_IFDIR | S_ISVTX | 0777, 0, "its mode is 1777");  // a folder such as /tmp
    refused(S_IFLNK | 0777, 0, "a symbolic link is not followed");
  }
}

TEST(Rights, APathIsAbsoluteAndThere) {
  Disk disk(installed());
  const auto relative = check_path_unwritable_by_others(disk, "usr/bin/octile");
  ASSERT_FALSE(relative);
  EXPECT_THAT(relative.error().sentence, HasSubstr("usr/bin/octile: not an absolute path"));
  const auto missing = check_path_unwritable_by_others(disk, "/usr/lib/octile");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ENOENT);
  EXPECT_THAT(missing.error().sentence, HasSubstr("/usr/lib"));
}

TEST(Rights, AProgramIsTrustedByItsPath) {
  FileOps system;
  const auto shell = trusted_program(system, "/bin/sh");
  ASSERT_TRUE(shell) << shell.error();
  EXPECT_EQ(*shell, resolve_links("/bin/sh").value()) << "the file, so that no link decides later";

  // Only the file that the links lead to is on this disk, below a folder that everyone may write.
  std::map<std::string, Disk::File> files{{"/", {kFolder | S_IWOTH, 0}}};
  Disk disk(files);
  const auto refused = trusted_program(disk, "/bin/sh");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error(), HasSubstr("\"/bin/sh\" is not started by a process"));
  EXPECT_THAT(refused.error(), HasSubstr("/: its mode is 0757"));

  const auto missing = trusted_program(system, "/nowhere/octile-compiler");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error(), HasSubstr("/nowhere/octile-compiler"));
}

// Ends this process with 0 if its own user is trusted in it, else with 1. The process counts as one
// that has more rights than its caller.
[[noreturn]] void exit_by_trust(uid_t real, uid_t effective) {
  count_as_having_more_rights();
  if (::setresuid(real, effective, effective) != 0 || !has_more_rights_than_caller()) ::_exit(2);
  struct stat own = {};
  own.st_mode = kFolder;
  own.st_uid = effective;
  const bool believed = check_unwritable_by_others(own, "own").has_value();
  FileOps ops;
  const bool starts = trusted_program(ops, "/bin/sh").has_value();
  ::_exit(believed != own_user_is_trusted() || starts != believed ? 3 : believed ? 0 : 1);
}

// setgid and capabilities give rights to a process whose user is the caller, so that user's files
// are the caller's.
TEST(Rights, TheCallersUserIsNotTrusted) {
  EXPECT_FALSE(has_more_rights_than_caller());
  EXPECT_TRUE(own_user_is_trusted());
  if (::geteuid() != 0) {
    EXPECT_EXIT(exit_by_trust(::getuid(), ::getuid()), ::testing::ExitedWithCode(1), "");
    return;
  }
  EXPECT_EXIT(exit_by_trust(kSomebody, kSomebody), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(exit_by_trust(kSomebody, kSomebody + 1), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_by_trust(0, 0), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace octile::cache
