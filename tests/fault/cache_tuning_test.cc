// Failures around a file of tuning records: calls that fail, writers that die, locks that are never
// released, files that others may write.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "cache/tuning_file.h"
#include "tests/support/cache_testing.h"
#include "tests/support/tuning_testing.h"

namespace octile::cache {
namespace {

namespace fs = std::filesystem;
using testing::Child;
using ::testing::HasSubstr;
using testing::HookedOps;
using testing::kTunedProblem;
using testing::make_decision;
using testing::make_full_record;
using testing::Op;
using testing::TempDir;
using namespace std::chrono_literals;

// The nth call of any kind fails with any of these codes. append() reports it, or the record is
// there once. Earlier records stay, and afterwards the file works as before.
TEST(TuningFaults, AnyCallMayFail) {
  const TuningRecord before = make_decision(kTunedProblem, 32);
  const TuningRecord during = make_decision(kTunedProblem, 64);
  const TuningRecord after = make_decision(kTunedProblem, 128);
  int failures = 0;
  for (const Op op :
       {Op::kOpen, Op::kRead, Op::kWrite, Op::kFsync, Op::kClose, Op::kStat, Op::kLock}) {
    for (const int code : {EIO, ENOSPC, EACCES, ESTALE, ENOLCK, EINTR}) {
      for (int nth = 0; nth < 3; ++nth) {
        SCOPED_TRACE(std::string(testing::name_of(op)) + " " + std::to_string(nth) +
                     " fails with " + std::to_string(code));
        const TempDir dir;
        const TuningFile sound(dir / "root", true);
        ASSERT_TRUE(sound.append(before));
        std::atomic<int> seen = 0;
        const auto ops = std::make_shared<HookedOps>([&](Op asked) -> std::optional<int> {
          return asked == op && seen++ == nth ? std::optional(code) : std::nullopt;
        });
        const auto appended = TuningFile(dir / "root", true, ops, 20ms).append(during);
        if (!appended) {
          ++failures;
          EXPECT_FALSE(appended.error().sentence.empty());
        }
        ASSERT_TRUE(sound.append(after));
        const auto lines = sound.read();
        ASSERT_TRUE(lines);
        EXPECT_EQ(lines->skipped, 0U);
        ASSERT_GE(lines->records.size(), appended ? 3U : 2U);
        EXPECT_EQ(lines->records.front(), before);
        EXPECT_EQ(lines->records.back(), after);
        if (lines->records.size() == 3) {
          EXPECT_EQ(lines->records[1], during);
        }
      }
    }
  }
  EXPECT_GT(failures, 20) << "the faults reached the calls";
}

TEST(TuningFaults, ReadSaysWhatFailed) {
  const TempDir dir;
  ASSERT_TRUE(TuningFile(dir / "root", true).append(make_full_record()));
  for (const Op op : {Op::kOpen, Op::kRead, Op::kStat}) {
    const auto ops = std::make_shared<HookedOps>([&](Op asked) -> std::optional<int> {
      return asked == op ? std::optional(EIO) : std::nullopt;
    });
    const TuningFile file(dir / "root", true, ops);
    const auto lines = file.read();
    ASSERT_FALSE(lines) << testing::name_of(op);
    EXPECT_EQ(lines.error().code, EIO);
    EXPECT_THAT(lines.error().sentence, HasSubstr(dir / "root"));
  }
}

TEST(TuningFaults, WritesInSmallPartsStillMakeOneLine) {
  const TempDir dir;
  const auto nothing_fails = [](Op) { return std::optional<int>(); };
  const TuningFile file(dir / "root", true, std::make_shared<HookedOps>(nothing_fails, 7));
  ASSERT_TRUE(file.append(make_full_record()));
  ASSERT_TRUE(file.append(make_full_record()));
  EXPECT_EQ(file.read()->records.size(), 2U);
}

// The disk is full after a part of a line. Then the writer is gone and the disk has free space
// again.
TEST(TuningFaults, ALineCutByAFullDiskCostsThatLineOnly) {
  const TempDir dir;
  std::atomic<int> writes = 0;
  const auto ops = std::make_shared<HookedOps>(
      [&](Op op) -> std::optional<int> {
        return op == Op::kWrite && writes++ == 1 ? std::optional(ENOSPC) : std::nullopt;
      },
      40);
  const auto cut = TuningFile(dir / "root", true, ops).append(make_full_record());
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, ENOSPC);
  const TuningFile sound(dir / "root", true);
  EXPECT_TRUE(sound.read()->torn);
  ASSERT_TRUE(sound.append(make_decision(kTunedProblem, 64)));
  const auto lines = sound.read();
  EXPECT_EQ(lines->records, std::vector{make_decision(kTunedProblem, 64)});
  EXPECT_EQ(lines->skipped, 1U);
}

TEST(TuningFaults, AWriterKilledAtAnyMomentTearsNoOtherLine) {
  const TempDir dir;
  for (int round = 0; round < 20; ++round) {
    Child child([&]() -> std::string {
      const auto ops = std::make_shared<HookedOps>([](Op) { return std::optional<int>(); }, 16);
      const TuningFile file(dir / "root", true, ops);
      while (file.append(make_full_record())) {
      }
      return "append failed";
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 3 * round));
    ::kill(child.pid(), SIGKILL);
    EXPECT_EQ(child.wait(), "signal 9");
    ASSERT_TRUE(TuningFile(dir / "root", true).append(make_decision(kTunedProblem, 64)));
  }
  const auto lines = TuningFile(dir / "root", true).read();
  ASSERT_TRUE(lines);
  EXPECT_LE(lines->skipped, 20U) << "at most the line each of them was at";
  EXPECT_EQ(
      std::count(lines->records.begin(), lines->records.end(), make_decision(kTunedProblem, 64)),
      20);
}

TEST(TuningFaults, ALockThatIsNeverGivenBackIsNotWaitedForLong) {
  const TempDir dir;
  const TuningFile file(dir / "root", true, nullptr, 50ms);
  ASSERT_TRUE(file.append(make_full_record()));
  const int fd = ::open(file.path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(file.append(make_full_record()));
  const auto waited = std::chrono::steady_clock::now() - start;
  ::close(fd);
  EXPECT_GE(waited, 50ms);
  EXPECT_LT(waited, 5s);
  EXPECT_EQ(file.read()->records.size(), 2U);
}

// Writers on a filesystem without locks: a line is written with one call and stays whole.
TEST(TuningFaults, WithoutLocksLinesDoNotMix) {
  constexpr int kWriters = 4;
  constexpr int kRecords = 50;
  const TempDir dir;
  std::vector<Child> children;
  for (int writer = 0; writer < kWriters; ++writer) {
    children.emplace_back([&]() -> std::string {
      const auto no_locks = std::make_shared<HookedOps>([](Op op) -> std::optional<int> {
        return op == Op::kLock ? std::optional(ENOLCK) : std::nullopt;
      });
      const TuningFile file(dir / "root", true, no_locks);
      for (int i = 0; i < kRecords; ++i) {
        if (!file.append(make_full_record())) return "append failed";
      }
      return "";
    });
  }
  for (Child& child : children) EXPECT_EQ(child.wait(), "");
  const auto lines = TuningFile(dir / "root", true).read();
  ASSERT_TRUE(lines);
  EXPECT_EQ(lines->skipped, 0U) << lines->first_skipped;
  EXPECT_EQ(lines->records.size(), std::size_t{kWriters} * kRecords);
}

// --- files that are refused ---

// Returns the error of read() and append(), which must be the same.
std::string refusal(const std::string& root, bool writable = true) {
  const TuningFile file(root, writable);
  const auto lines = file.read();
  if (lines) return "read";
  if (!writable) return lines.error().sentence;
  const auto appended = file.append(make_full_record());
  return appended ? "appended" : lines.error().sentence;
}

TEST(TuningRefusals, AFileOthersMayWrite) {
  const TempDir dir;
  ASSERT_TRUE(TuningFile(dir / "root", true).append(make_full_record()));
  for (const auto& [mode, text] : {std::pair{0666, "0666"}, {0664, "0664"}, {0646, "0646"}}) {
    fs::permissions(dir / "root/tuning.jsonl", fs::perms(mode));
    for (const bool writable : {true, false}) {
      EXPECT_EQ(refusal(dir / "root", writable), dir / "root/tuning.jsonl: its mode is " + text +
                                                     "; allowed: not writable by group or others");
    }
  }
  fs::permissions(dir / "root/tuning.jsonl", fs::perms(0600));
  EXPECT_EQ(refusal(dir / "root"), "read");
}

TEST(TuningRefusals, AnotherUsersFileInAWritableRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const TempDir dir;
  ASSERT_TRUE(TuningFile(dir / "root", true).append(make_full_record()));
  constexpr uid_t kSomebody = 12345;
  ASSERT_EQ(::chown((dir / "root/tuning.jsonl").c_str(), kSomebody, kSomebody), 0);
  EXPECT_EQ(refusal(dir / "root"), dir /
                                       "root/tuning.jsonl: it belongs to user 12345; allowed: "
                                       "this user (0) or root");
  EXPECT_EQ(refusal(dir / "root", false), "read") << "a shipped root may be anybody's";
}

TEST(TuningRefusals, WhatIsNoRegularFile) {
  const TempDir dir;
  const std::string path = dir / "root/tuning.jsonl";
  fs::create_directories(path);
  EXPECT_THAT(refusal(dir / "root"), HasSubstr("not a regular file"));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(refusal(dir / "root"), HasSubstr("not a regular file"));
  fs::remove(path);
  ASSERT_TRUE(TuningFile(dir / "elsewhere", true).append(make_full_record()));
  fs::create_symlink(dir / "elsewhere/tuning.jsonl", path);
  EXPECT_THAT(refusal(dir / "root"), HasSubstr("symbolic link"));
  EXPECT_EQ(TuningFile(dir / "elsewhere", true).read()->records.size(), 1U);
}

TEST(TuningRefusals, AFileTooLargeToRead) {
  const TempDir dir;
  ASSERT_TRUE(TuningFile(dir / "root", true).append(make_full_record()));
  fs::resize_file(dir / "root/tuning.jsonl", kMaxTuningFileBytes + 1);
  const auto lines = TuningFile(dir / "root", true).read();
  ASSERT_FALSE(lines);
  EXPECT_THAT(lines.error().sentence, HasSubstr("67108865 bytes, at most 67108864 are read"));
}

TEST(TuningRefusals, AFolderThatMayNotBeWritten) {
  const TempDir dir;
  ASSERT_TRUE(TuningFile(dir / "root", true).append(make_full_record()));
  fs::permissions(dir / "root/tuning.jsonl", fs::perms(0444));
  fs::permissions(dir / "root", fs::perms(0555));
  const std::string report =
      Child([&]() -> std::string {
        if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return "still root";
        const TuningFile file(dir / "root", true);
        if (file.append(make_full_record())) return "appended";
        // Root's file, which only root may write.
        const auto lines = file.read();
        return lines && lines->records.size() == 1 ? "" : "not read";
      }).wait();
  EXPECT_EQ(report, "");
  EXPECT_FALSE(TuningFile("/dev/null/root", true).append(make_full_record()));
}

}  // namespace
}  // namespace octile::cache
