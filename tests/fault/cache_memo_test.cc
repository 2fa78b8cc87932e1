// The memory of a process in a root: files that must not be followed, waited for, believed or
// written.
#include "cache/memo_file.h"

#include <sys/stat.h>

#include "tests/support/cache_disks.h"
#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;

class MemoFaults : public ::testing::Test {
 protected:
  MemoFaults() { fs::create_directory(root_); }

  static std::string text_of(const std::string& path) {
    const auto bytes = read_bytes(path);
    return {bytes.begin(), bytes.end()};
  }
  // Expects that nothing is read, with these words, and that replacing heals the name.
  void expect_refused_and_healed(const std::string& words) {
    const auto read = memo_.read();
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, 0);
    EXPECT_NE(read.error().sentence.find(words), std::string::npos) << read.error().sentence;
    EXPECT_TRUE(memo_.replace("new"));
    EXPECT_EQ(memo_.read().value_or(""), "new");
  }

  TempDir dir_;
  std::string root_ = dir_ / "root";
  std::string path_ = root_ + "/test.memo";
  MemoFile memo_{root_, "test.memo"};
};

TEST_F(MemoFaults, GivesBackWhatWasLeft) {
  EXPECT_EQ(memo_.read().error().code, ENOENT);
  ASSERT_TRUE(memo_.replace("one\n"));
  ASSERT_TRUE(memo_.replace("two\n"));
  EXPECT_EQ(memo_.read().value(), "two\n");
  EXPECT_EQ(files_ending(root_, ""), std::vector{path_}) << "no temporary file is left";
}

// A link in a folder that others share would lead the next write to a file of this user's.
TEST_F(MemoFaults, ALinkIsNeitherReadNorWrittenThrough) {
  write_bytes(dir_ / "precious", {'k', 'e', 'e', 'p'});
  fs::create_symlink(dir_ / "precious", path_);
  expect_refused_and_healed("symbolic link");
  EXPECT_EQ(text_of(dir_ / "precious"), "keep");
  EXPECT_FALSE(fs::is_symlink(path_));
}

TEST_F(MemoFaults, AFifoIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_refused_and_healed("not a regular file");
}

TEST_F(MemoFaults, AnEndlessDeviceIsNotRead) {
  fs::create_symlink("/dev/zero", path_);
  expect_refused_and_healed("symbolic link");
  fs::remove(path_);
  if (::mknod(path_.c_str(), S_IFCHR | 0600, (1U << 8) | 5U) != 0) {
    GTEST_SKIP() << "no right to make a device";
  }
  expect_refused_and_healed("not a regular file");
}

TEST_F(MemoFaults, AFileBeyondTheLimitIsNeitherReadNorWritten) {
  write_bytes(path_, {1});
  fs::resize_file(path_, kMaxMemoBytes + 1);
  expect_refused_and_healed("at most 65536 are read");
  EXPECT_FALSE(memo_.replace(std::string(kMaxMemoBytes + 1, 'x')));
  EXPECT_EQ(text_of(path_), "new");
}

TEST_F(MemoFaults, WhatOthersMayWriteIsNotBelieved) {
  for (const fs::perms bit : {fs::perms::group_write, fs::perms::others_write}) {
    ASSERT_TRUE(memo_.replace("old"));
    fs::permissions(path_, bit, fs::perm_options::add);
    expect_refused_and_healed("its mode is");
  }
}

TEST_F(MemoFaults, WhatBelongsToAnotherUserIsNotBelieved) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  constexpr uid_t kSomebody = 12345;
  ASSERT_TRUE(memo_.replace("old"));
  ASSERT_EQ(::chown(path_.c_str(), kSomebody, kSomebody), 0);
  expect_refused_and_healed("belongs to user 12345");
}

TEST_F(MemoFaults, ARefusedRootIsNeitherReadNorWritten) {
  ASSERT_TRUE(memo_.replace("old"));
  fs::permissions(root_, fs::perms(0777));
  EXPECT_EQ(memo_.read().error().code, EPERM);
  EXPECT_EQ(memo_.replace("new").error().code, EPERM);
  if (::geteuid() == 0) {
    fs::permissions(root_, fs::perms(0700));
    constexpr uid_t kSomebody = 12345;
    ASSERT_EQ(::chown(root_.c_str(), kSomebody, kSomebody), 0);
    EXPECT_EQ(memo_.read().error().code, EPERM);
    EXPECT_EQ(memo_.replace("new").error().code, EPERM);
  }
  EXPECT_EQ(text_of(path_), "old");
  EXPECT_EQ(files_ending(root_, ""), std::vector{path_});
}

// Only temporary files of its own name, and only old ones, are removed.
TEST_F(MemoFaults, WhatDeadWritersLeftIsRemoved) {
  const auto two_hours_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
  const std::string old = path_ + ".0123456789abcdef.tmp";
  const std::string fresh = path_ + ".fedcba9876543210.tmp";
  const std::string foreign = root_ + "/other.memo.0123456789abcdef.tmp";
  for (const std::string& file : {old, fresh, foreign}) write_bytes(file, {1});
  for (const std::string& file : {old, foreign}) fs::last_write_time(file, two_hours_ago);
  ASSERT_TRUE(memo_.replace("new"));
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_TRUE(fs::exists(foreign));
}

// Every call fails once, at every place: the memo is then the old one or the new one.
TEST_F(MemoFaults, AFailureAnywhereLeavesTheOldOrTheNew) {
  for (const Op op : {Op::kOpen, Op::kRead, Op::kWrite, Op::kFsync, Op::kClose, Op::kStat,
                      Op::kRename, Op::kUnlink, Op::kList}) {
    for (int nth = 0;; ++nth) {
      ASSERT_TRUE(memo_.replace("old"));
      int count = 0;
      const MemoFile failing(root_, "test.memo", std::make_shared<HookedOps>([&](Op now) {
                               return now == op && count++ == nth ? std::optional(EIO)
                                                                  : std::nullopt;
                             }));
      const bool replaced = failing.replace("new").has_value();
      if (count <= nth) break;
      // The last flush is the folder's. If it fails, the new text is there, and may not last.
      const bool unflushed = op == Op::kFsync && nth == 1;
      EXPECT_FALSE(unflushed && replaced);
      EXPECT_EQ(text_of(path_), replaced || unflushed ? "new" : "old") << name_of(op) << " " << nth;
      EXPECT_TRUE(files_ending(root_, ".tmp").empty()) << name_of(op) << " " << nth;
      ASSERT_LT(nth, 100);
    }
  }
}

}  // namespace
}  // namespace octile::cache
