// A file of tuning records that some append to while others replace it: nothing that was reported
// as kept is lost, whoever is killed and whether or not there are locks.
#include "cache/appended_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "cache/tuning_folder.h"
#include "runtime/tuned/record_files.h"
#include "tests/support/cache_testing.h"
#include "tests/support/tuning_testing.h"

namespace octile::cache {
namespace {

namespace fs = std::filesystem;
using testing::Child;
using ::testing::HasSubstr;
using testing::HookedOps;
using testing::Op;
using testing::TempDir;
using namespace std::chrono_literals;

TuningRecord numbered(int i) {
  TuningRecord record = testing::make_decision(
      fmt::format("gemm m=? n={} k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
                  128 * (i + 1)),
      64);
  record.date = "2026-01-01T00:00:00Z";
  return record;
}

std::string line_of_record(int i) { return to_json_line(numbered(i)) + "\n"; }

std::size_t lost_of(const std::string& root, int begin, int end) {
  const auto lines = TuningFile(root, true).read();
  std::set<std::string> there;
  for (const TuningRecord& record : lines->records) there.insert(record.problem);
  std::size_t lost = 0;
  for (int i = begin; i < end; ++i) lost += 1 - there.count(numbered(i).problem);
  return lost;
}

void write_text(const std::string& path, const std::string& text) {
  testing::write_bytes(path, {text.begin(), text.end()});
  fs::permissions(path, fs::perms(0644));
}

// Nothing is flushed, so that a test takes no seconds; `locks` false: every lock is refused.
std::shared_ptr<FileOps> quick(bool locks = true) {
  return std::make_shared<HookedOps>([locks](Op op) -> std::optional<int> {
    return op == Op::kLock && !locks ? std::optional(ENOLCK) : std::nullopt;
  });
}

// Replaces the file by its own lines and another file's records, as merge_records_into() does.
IoResult<void> merge_once(const std::string& path, const std::string& other, bool locks) {
  const auto ops = quick(locks);
  auto replacement = LinesReplacement::begin(path, ops);
  if (!replacement) return tl::unexpected(replacement.error());
  const auto merged = merge_records({path, other});
  if (!merged) return tl::unexpected(IoError{0, merged.error().message});
  return replacement->commit(merged->set.text());
}

class RecordReplace : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, RecordReplace, ::testing::Bool());

TEST_P(RecordReplace, WhatIsAppendedMeanwhileStays) {
  constexpr int kRecords = 200;
  const TempDir dir;
  const std::string root = dir / "root", path = root + "/tuning.jsonl";
  write_text(dir / "other", line_of_record(kRecords));
  ASSERT_TRUE(TuningFile(root, true, quick()).append(numbered(0)));
  Child tuner([&]() -> std::string {
    const TuningFile file(root, true, quick(GetParam()));
    for (int i = 1; i < kRecords; ++i)
      if (const auto kept = file.append(numbered(i)); !kept) return kept.error().sentence;
    return "";
  });
  std::atomic<bool> done = false;
  std::thread merges([&] {
    while (!done) {
      EXPECT_TRUE(merge_once(path, dir / "other", GetParam()));
      std::this_thread::sleep_for(2ms);  // others get a turn
    }
  });
  EXPECT_EQ(tuner.wait(), "");
  done = true;
  merges.join();
  EXPECT_EQ(lost_of(root, 0, kRecords + 1), 0U);
}

TEST(RecordReplaceKilled, LosesNothing) {
  constexpr int kRounds = 20;
  const TempDir dir;
  const std::string root = dir / "root", path = root + "/tuning.jsonl";
  write_text(dir / "other", line_of_record(5000));
  const TuningFile file(root, true, quick());
  int next = 0;
  ASSERT_TRUE(file.append(numbered(next++)));
  for (int round = 0; round < kRounds; ++round) {
    Child merging([&]() -> std::string {
      while (merge_once(path, dir / "other", true)) std::this_thread::sleep_for(2ms);
      return "";
    });
    for (int i = 0; i < 5; ++i) {
      const auto kept = file.append(numbered(next++));
      ASSERT_TRUE(kept) << kept.error().sentence;
    }
    ::kill(merging.pid(), SIGKILL);
    EXPECT_EQ(merging.wait(), "signal 9");
  }
  EXPECT_EQ(lost_of(root, 0, next), 0U);
}

TEST(RecordReplaceTwice, BothMergesIntoOneFileAreThere) {
  constexpr int kMerges = 4;
  const TempDir dir;
  const std::string root = dir / "root", out = root + "/tuning.jsonl";
  ASSERT_TRUE(TuningFile(root, true, quick()).append(numbered(100)));
  std::vector<Child> children;
  for (int i = 0; i < kMerges; ++i) {
    write_text(dir / fmt::format("{}", i), line_of_record(i));
    children.emplace_back([&, i]() -> std::string {
      const auto merged = merge_once(out, dir / fmt::format("{}", i), true);
      return merged ? "" : merged.error().sentence;
    });
  }
  for (Child& child : children) EXPECT_EQ(child.wait(), "");
  EXPECT_EQ(lost_of(root, 0, kMerges), 0U);
}

// A writer that the lock keeps out for too long appends without it.
TEST(RecordReplaceLate, LinesOfWhoeverCouldNotWaitAreTakenOver) {
  const TempDir dir;
  const std::string root = dir / "root", path = root + "/tuning.jsonl";
  ASSERT_TRUE(TuningFile(root, true, quick()).append(numbered(0)));
  // A read gives as few bytes as a network filesystem may.
  const auto few_bytes = std::make_shared<HookedOps>([](Op) { return std::nullopt; }, /*chunk=*/7);
  auto replacement = LinesReplacement::begin(path, few_bytes);
  ASSERT_TRUE(replacement);
  for (const int late : {1, 2})
    ASSERT_TRUE(TuningFile(root, true, quick(), 10ms).append(numbered(late)));
  ASSERT_TRUE(replacement->commit(line_of_record(0)));
  EXPECT_EQ(lost_of(root, 0, 3), 0U);
}

TEST(RecordReplaceLate, TwoDoNotReplaceAtOnce) {
  const TempDir dir;
  const std::string path = dir / "out";
  const auto first = LinesReplacement::begin(path, quick());
  ASSERT_TRUE(first);
  const auto second = LinesReplacement::begin(path, quick(), 10ms);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EWOULDBLOCK);
  EXPECT_THAT(second.error().sentence, HasSubstr("others have been writing it"));
}

TEST(RecordReplaceFile, KeepsItsModeAndLeavesNothingBehind) {
  const TempDir dir;
  const std::string path = dir / "out", old = dir / ".octile-records.0123456789abcdef.tmp";
  write_text(path, "private\n");
  fs::permissions(path, fs::perms(0600));
  write_text(old, "of a merge that was killed");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  auto replacement = LinesReplacement::begin(path);
  ASSERT_TRUE(replacement) << replacement.error().sentence;
  ASSERT_TRUE(replacement->commit("whole\n"));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms(0600));
  EXPECT_EQ(testing::files_ending(dir / "", ""), std::vector{path});
}

TEST(RecordReplaceFile, ThatIsNotCommittedLeavesWhatIsThere) {
  const TempDir dir;
  {
    EXPECT_TRUE(LinesReplacement::begin(dir / "new")->made());
  }
  EXPECT_FALSE(fs::exists(dir / "new"));
  write_text(dir / "old", "as it was\n");
  {
    EXPECT_FALSE(LinesReplacement::begin(dir / "old")->made());
  }
  EXPECT_EQ(testing::read_bytes(dir / "old").size(), 10U);
  // A file that cannot be written is as it was, too.
  const auto full = std::make_shared<HookedOps>([](Op op) -> std::optional<int> {
    return op == Op::kWrite ? std::optional(ENOSPC) : std::nullopt;
  });
  auto replacement = LinesReplacement::begin(dir / "old", full);
  ASSERT_TRUE(replacement);
  const auto refused = replacement->commit("more\n");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOSPC);
  EXPECT_EQ(testing::files_ending(dir / "", ""), std::vector{dir / "old"});
}

// ---- what is read

TEST(RecordReader, TakesRegularFilesAlone) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  write_text(dir / "run/tuning.jsonl", line_of_record(0));
  fs::create_directories(dir / "run/tuning.d/folder.jsonl");
  for (const std::string& path : {dir / "fifo", std::string("/dev/zero"), dir / "run"}) {
    const auto merged = merge_records({path});
    ASSERT_FALSE(merged) << path;
    EXPECT_EQ(merged.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(merged.error().message,
                HasSubstr("not a regular file; allowed: a file of records"));
  }
  fs::remove(dir / "run/tuning.d/folder.jsonl");
  ASSERT_EQ(::mkfifo((dir / "run/tuning.d/fifo.jsonl").c_str(), 0600), 0);
  EXPECT_THAT(merge_records({dir / "run"}).error().message, HasSubstr("fifo.jsonl: not a regular"));
  fs::remove(dir / "run/tuning.d/fifo.jsonl");
  fs::create_symlink(dir / "run/tuning.jsonl", dir / "link");
  EXPECT_EQ(merge_records({dir / "link", dir / "run"})->set.text(), line_of_record(0));
}

// A file of a root that is refused costs its own records.
TEST(RecordReader, WhatIsRefusedInARootIsNamedAndTheOthersServe) {
  const TempDir dir;
  const std::string root = dir / "root";
  ASSERT_TRUE(TuningFile(root, true).append(numbered(0)));
  ASSERT_TRUE(TuningFile::of_rank(root, true, "a").append(numbered(1)));
  ASSERT_EQ(::mkfifo((root + "/tuning.d/b.jsonl").c_str(), 0600), 0);
  ASSERT_TRUE(TuningFile::of_rank(root, true, "c").append(numbered(2)));
  const TuningFolder folder(root, true);
  const auto lines = folder.read();
  ASSERT_TRUE(lines);
  EXPECT_EQ(lines->records.size(), 3U);
  EXPECT_THAT(lines->left_out, HasSubstr("b.jsonl: not a regular file"));
  EXPECT_FALSE(all_texts(folder)) << "a shared run has to have all of them";
}

// Files with holes take no disk.
TEST(RecordReader, BytesAreBoundedInSum) {
  const TempDir dir;
  const std::string root = dir / "root";
  ASSERT_TRUE(TuningFile(root, true).append(numbered(0)));
  for (const char* rank : {"a", "b", "c"}) {
    const TuningFile file = TuningFile::of_rank(root, true, rank);
    ASSERT_TRUE(file.append(numbered(1)));
    fs::resize_file(file.path(), kMaxTuningFileBytes);
  }
  const auto lines = TuningFolder(root, true).read();
  ASSERT_TRUE(lines);
  EXPECT_THAT(lines->left_out, HasSubstr("allowed: up to 134217728"));
  EXPECT_EQ(lines->records.size(), 2U);
  const auto merged = merge_records({root});
  ASSERT_FALSE(merged);
  EXPECT_THAT(merged.error().message, HasSubstr("bytes together; allowed: up to 134217728"));
}

}  // namespace
}  // namespace octile::cache
