// The sums contain every counted event, even if a process dies.
#include "cache/statistics.h"

#include <thread>

#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;

// Adds up all days, because a test that runs at midnight writes two.
DayStatistics total_of(const StatisticsLog& log) {
  const auto days = log.read();
  DayStatistics sum;
  if (!days) ADD_FAILURE() << days.error().sentence;
  if (!days) return sum;
  for (const DayStatistics& day : *days) {
    sum.hits += day.hits;
    sum.misses += day.misses;
    sum.saved_seconds += day.saved_seconds;
  }
  return sum;
}

TEST(CacheStatistics, LinesAreSummed) {
  const DayStatistics day =
      sum_statistics("2026-01-31", "hit 250\nmiss 1000.5\nhit 750.0\nmiss 0.0\n");
  EXPECT_EQ(day, (DayStatistics{"2026-01-31", 2, 2, 1.0, 1.0005}));
}

TEST(CacheStatistics, WhatIsNoEventCountsNothing) {
  for (const char* lines : {"", "hit 5", "hit\n", "hit \n", "hit x\n", "hit 5 \n", "hit -1\n",
                            "hit inf\n", "hit nan\n", "hot 5\n", "\n", "hit 4miss 3\n"}) {
    EXPECT_EQ(sum_statistics("d", lines), (DayStatistics{"d", 0, 0, 0, 0})) << lines;
  }
  EXPECT_EQ(sum_statistics("d", "hit 4hit 3\nhit 2000\n").saved_seconds, 2);
}

TEST(CacheStatistics, ARootWithoutAnyHasNoDay) {
  const TempDir dir;
  const auto days = StatisticsLog(dir / "nowhere").read();
  ASSERT_TRUE(days);
  EXPECT_TRUE(days->empty());
  EXPECT_FALSE(fs::exists(dir / "nowhere"));
}

TEST(CacheStatistics, ThreadsLoseNoEvent) {
  const TempDir dir;
  const StatisticsLog log(dir / "root");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        EXPECT_TRUE(log.count(i % 4 == 0 ? CacheEvent::kMiss : CacheEvent::kHit, 10));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const DayStatistics sum = total_of(log);
  EXPECT_EQ(sum.hits, 300);
  EXPECT_EQ(sum.misses, 100);
  EXPECT_NEAR(sum.saved_seconds, 3, 1e-9);
}

TEST(CacheStatistics, WhatWasCountedOutlivesTheProcess) {
  const TempDir dir;
  Child child([&]() -> std::string {
    const StatisticsLog log(dir / "root");
    for (int i = 0; i < 5; ++i) log.count(CacheEvent::kHit, 100);
    ::kill(::getpid(), SIGKILL);
    return "alive";
  });
  EXPECT_EQ(child.wait(), "signal 9");
  EXPECT_EQ(total_of(StatisticsLog(dir / "root")).hits, 5);
}

TEST(CacheStatistics, ADaysFirstEventRemovesOldDays) {
  const TempDir dir;
  write_bytes(dir / "root/statistics/2001-01-31", {'h', 'i', 't', ' ', '1', '\n'});
  write_bytes(dir / "root/statistics/notes.txt", {'x'});
  const StatisticsLog log(dir / "root");
  ASSERT_EQ(log.read()->size(), 1U);
  EXPECT_EQ(log.read()->front().hits, 1);
  ASSERT_TRUE(log.count(CacheEvent::kMiss, 1));
  ASSERT_EQ(log.read()->size(), 1U);
  EXPECT_EQ(log.read()->front().misses, 1);
  EXPECT_TRUE(fs::exists(dir / "root/statistics/notes.txt"));
}

TEST(CacheStatistics, AFullDayCountsNoMore) {
  const TempDir dir;
  const StatisticsLog log(dir / "root");
  ASSERT_TRUE(log.count(CacheEvent::kHit, 1));
  const std::string file = files_ending(dir / "root/statistics", "").front();
  fs::resize_file(file, kMaxStatisticsBytes);
  EXPECT_TRUE(log.count(CacheEvent::kHit, 1));
  EXPECT_EQ(fs::file_size(file), kMaxStatisticsBytes);
}

// Nobody depends on an event, so the store continues without a warning.
TEST(CacheStatistics, WhatCannotBeCountedIsToldToDebugging) {
  const TempDir dir;
  LogRecorder log;
  StoreOptions options;
  options.log = log.callback();
  Store(options).count(CacheEvent::kHit, 1);  // there is no root
  options.writable_root = dir / "root";
  write_bytes(dir / "root", {1});  // the root is not a folder
  Store(options).count(CacheEvent::kHit, 1);
  EXPECT_TRUE(log.warnings().empty());
  const auto counted = StatisticsLog(dir / "root").count(CacheEvent::kHit, 1);
  ASSERT_FALSE(counted);
  EXPECT_NE(counted.error().sentence.find("root"), std::string::npos);
}

}  // namespace
}  // namespace octile::cache
