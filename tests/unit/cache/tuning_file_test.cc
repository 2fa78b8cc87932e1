// A root's file of tuning records: any number of writers append to it, and any content can be read.
#include "cache/tuning_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "tests/support/cache_testing.h"
#include "tests/support/peak_memory.h"
#include "tests/support/tuning_testing.h"

namespace octile::cache {
namespace {

namespace fs = std::filesystem;
using test::peak_bytes;
using testing::Child;
using ::testing::HasSubstr;
using testing::kTunedProblem;
using testing::make_decision;
using testing::make_full_record;
using testing::TempDir;

std::string text_of(const std::string& path) {
  const auto bytes = testing::read_bytes(path);
  return {bytes.begin(), bytes.end()};
}
void write_text(const std::string& path, const std::string& text) {
  testing::write_bytes(path, {text.begin(), text.end()});
}

TEST(TuningLines, ReadsOneRecordALineAndCountsTheRest) {
  const std::string line = to_json_line(make_full_record());
  const TuningLines lines = parse_tuning_lines(line + "\n\n \t\r\n" + line + "\r\nnonsense\n" +
                                               line + "\n{\"version\":2}\n");
  EXPECT_EQ(lines.records.size(), 3U);
  EXPECT_EQ(lines.skipped, 2U);
  EXPECT_EQ(lines.first_skipped, "line 5: tuning record: not a JSON object");
  EXPECT_FALSE(lines.torn);
}

TEST(TuningLines, ALastLineWithoutNewlineIsARecordOrTorn) {
  const std::string line = to_json_line(make_full_record());
  const TuningLines whole = parse_tuning_lines(line + "\n" + line);
  EXPECT_EQ(whole.records.size(), 2U);
  EXPECT_FALSE(whole.torn);
  for (std::size_t bytes = 1; bytes < line.size(); ++bytes) {
    const TuningLines torn = parse_tuning_lines(line + "\n" + line.substr(0, bytes));
    EXPECT_EQ(torn.records.size(), 1U) << bytes;
    EXPECT_EQ(torn.skipped, 0U) << "it may be on its way";
    EXPECT_TRUE(torn.torn) << bytes;
  }
}

std::string nested_objects(int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += "{\"\":";
  return text + "0" + std::string(static_cast<std::size_t>(depth), '}');
}

// A record but for its many baselines. The time of their names' search would grow by the square.
std::string record_of_baselines(int count) {
  std::string text = R"({"version":1,"problem":"p","bucket":1,"tokens":1,"device":"d",)"
                     R"("sm_count":1,"winner":{"config":"c"},"baselines_us":{)";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  return text + "}}";
}

#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kMostBytes = std::int64_t{300} << 20;  // what is freed stays in quarantine
#else
constexpr std::int64_t kMostBytes = std::int64_t{8} << 20;
#endif

// A hostile file costs no more memory than its own bytes, with any lines.
TEST(TuningLines, AHostileFileIsBounded) {
  constexpr std::size_t kBytes = std::size_t{60} << 20;
  const auto lines_of = [](const std::string& line) {
    std::string text;
    while (text.size() + line.size() < kBytes) text += line;
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {std::string(kBytes, '['), "line 1: tuning record: 62914560 bytes, at most 65536 are read"},
      {lines_of(std::string(65'000, '[') + "\n"),
       "line 1: tuning record: values nest more than 8 deep"},
      {lines_of(std::string(32'000, '{') + std::string(32'000, '}') + "\n"),
       "line 1: tuning record: not a JSON object"},
      {lines_of(nested_objects(10'000) + "\n"),
       "line 1: tuning record: values nest more than 8 deep"},
      {lines_of(record_of_baselines(6000) + "\n"),
       "line 1: tuning record: field 'baselines_us' is not an object of at most 64 numbers"},
      {lines_of("{}\n"), "line 1: tuning record: field 'version' is not a 32-bit integer"}};
  for (const auto& [text, first_skipped] : cases) {
    const std::string report =
        Child([&]() -> std::string {
          const std::int64_t before = peak_bytes();
          const TuningLines lines = parse_tuning_lines(text);
          const std::int64_t more = peak_bytes() - before;
          if (lines.first_skipped != first_skipped) return lines.first_skipped;
          if (lines.skipped > kMaxSkippedLines + 1) return "not cut";
          if (lines.cut != (lines.skipped > kMaxSkippedLines)) return "cut";
          return more < kMostBytes ? "" : std::to_string(more) + " bytes more";
        }).wait();
    EXPECT_EQ(report, "");
  }
}

TEST(TuningLines, OnlySoManyRecordsAreRead) {
  const std::string line = R"({"version":1,"problem":"p","bucket":1,"tokens":1,"device":"d",)"
                           R"("sm_count":1,"winner":{"config":"c"}})";
  std::string text;
  for (std::size_t i = 0; i < kMaxTuningRecords; ++i) text += line + "\n";
  const TuningLines all = parse_tuning_lines(text + "\n");
  EXPECT_EQ(all.records.size(), kMaxTuningRecords);
  EXPECT_FALSE(all.full);
  const TuningLines more = parse_tuning_lines(text + "\n" + line + "\n" + line + "\n");
  EXPECT_EQ(more.records.size(), kMaxTuningRecords);
  EXPECT_TRUE(more.full);
  EXPECT_EQ(more.skipped, 0U);
}

TEST(TuningLines, BracketsWithinATextDoNotNest) {
  TuningRecord record = make_full_record();
  record.device_name = std::string(100, '[') + "\\\"" + std::string(100, '{');
  const TuningLines lines = parse_tuning_lines(to_json_line(record) + "\n");
  ASSERT_EQ(lines.records.size(), 1U) << lines.first_skipped;
  EXPECT_EQ(lines.records[0], record);
}

TEST(TuningFile, WhatIsAppendedIsRead) {
  const TempDir dir;
  const TuningFile file(dir / "not/there/yet", true);
  EXPECT_EQ(file.path(), dir / "not/there/yet/tuning.jsonl");
  EXPECT_EQ(file.stamp(), TuningStamp{});
  ASSERT_TRUE(file.read());
  EXPECT_TRUE(file.read()->records.empty());

  const TuningRecord first = make_full_record();
  const TuningRecord second = make_decision(kTunedProblem, 64);
  ASSERT_TRUE(file.append(first));
  const TuningStamp stamp = file.stamp();
  EXPECT_NE(stamp, TuningStamp{});
  EXPECT_EQ(stamp, file.stamp());
  ASSERT_TRUE(file.append(second));
  EXPECT_NE(file.stamp(), stamp);
  const auto lines = file.read();
  ASSERT_TRUE(lines) << lines.error().sentence;
  EXPECT_EQ(lines->records, (std::vector<TuningRecord>{first, second}));
  EXPECT_EQ(text_of(file.path()), to_json_line(first) + "\n" + to_json_line(second) + "\n");
}

TEST(TuningFile, IsPrivateToItsWriterWhateverTheUmask) {
  const TempDir dir;
  const std::string report = Child([&]() -> std::string {
                               ::umask(0);
                               const TuningFile file(dir / "root", true);
                               if (!file.append(make_full_record())) return "not appended";
                               return file.read() ? "" : file.read().error().sentence;
                             }).wait();
  EXPECT_EQ(report, "");
  EXPECT_EQ(fs::status(dir / "root/tuning.jsonl").permissions(), fs::perms(0644));
}

TEST(TuningFile, AnAppendAfterATornLineStartsItsOwn) {
  const TempDir dir;
  const TuningFile file(dir / "root", true);
  const std::string line = to_json_line(make_full_record());
  write_text(file.path(), line + "\n" + line.substr(0, 100));
  ASSERT_TRUE(file.append(make_decision(kTunedProblem, 64)));
  const auto lines = file.read();
  ASSERT_TRUE(lines);
  EXPECT_EQ(lines->records, (std::vector{make_full_record(), make_decision(kTunedProblem, 64)}));
  EXPECT_EQ(lines->skipped, 1U);
  EXPECT_THAT(lines->first_skipped, HasSubstr("line 2: "));
  EXPECT_FALSE(lines->torn);
}

TEST(TuningFile, ARecordThatWouldNotBeReadIsNotWritten) {
  const TempDir dir;
  const TuningFile file(dir / "root", true);
  TuningRecord record = make_full_record();
  record.tokens = 5000;
  const auto appended = file.append(record);
  ASSERT_FALSE(appended);
  EXPECT_THAT(appended.error().sentence, HasSubstr("'tokens' is not 1 to the bucket's 4096"));
  EXPECT_FALSE(fs::exists(file.path()));
}

TEST(TuningFile, AReadOnlyRootIsReadAndNotWritten) {
  const TempDir dir;
  ASSERT_TRUE(TuningFile(dir / "root", true).append(make_full_record()));
  const TuningFile file(dir / "root", false);
  EXPECT_EQ(file.read()->records.size(), 1U);
  const auto appended = file.append(make_full_record());
  ASSERT_FALSE(appended);
  EXPECT_THAT(appended.error().sentence, HasSubstr("read-only"));
  EXPECT_EQ(file.read()->records.size(), 1U);
}

TEST(TuningFile, ARootByARelativePathStaysWhereItWas) {
  const TempDir dir;
  const std::string report = Child([&]() -> std::string {
                               fs::create_directory(dir / "elsewhere");
                               fs::current_path(dir / "");
                               const TuningFile file("root", true);
                               fs::current_path(dir / "elsewhere");
                               return file.append(make_full_record()) ? "" : "not appended";
                             }).wait();
  EXPECT_EQ(report, "");
  EXPECT_TRUE(fs::exists(dir / "root/tuning.jsonl"));
}

// Several processes with several threads append to one file. Each record names its writer.
TEST(TuningFile, ManyWritersLoseNothing) {
  constexpr int kProcesses = 5;
  constexpr int kThreads = 4;
  constexpr int kRecords = 50;  // for each thread: 1,000 altogether
  const TempDir dir;
  const auto write = [&](int writer) {
    const TuningFile file(dir / "root", true);
    for (int i = 0; i < kRecords; ++i) {
      TuningRecord record = make_full_record();
      record.protocol = std::to_string(writer) + std::string(static_cast<std::size_t>(i) * 20, '.');
      record.counts.timed = i;
      if (!file.append(record)) return false;
    }
    return true;
  };
  std::vector<Child> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.emplace_back([&, process]() -> std::string {
      std::atomic<int> failed = 0;
      std::vector<std::thread> threads;
      for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] { failed += !write(process * kThreads + thread); });
      }
      for (std::thread& thread : threads) thread.join();
      return failed == 0 ? "" : std::to_string(failed) + " writers failed";
    });
  }
  for (Child& child : children) EXPECT_EQ(child.wait(), "");

  const auto lines = TuningFile(dir / "root", true).read();
  ASSERT_TRUE(lines);
  EXPECT_EQ(lines->skipped, 0U) << lines->first_skipped;
  EXPECT_FALSE(lines->torn);
  EXPECT_EQ(lines->records.size(), std::size_t{kProcesses} * kThreads * kRecords);
  std::map<int, std::int64_t> next;  // each writer's records are in its order
  for (const TuningRecord& record : lines->records) {
    EXPECT_EQ(record.counts.timed, next[std::stoi(record.protocol)]++);
  }
  EXPECT_EQ(next.size(), std::size_t{kProcesses} * kThreads);
}

}  // namespace
}  // namespace octile::cache
