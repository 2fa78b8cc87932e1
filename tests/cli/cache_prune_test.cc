// octile cache prune and stats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "cache/statistics.h"
#include "tests/cli/command.h"
#include "tests/support/cache_testing.h"

namespace octile::tests {
namespace {

using cache::Entry;
using cache::testing::make_entry;
using ::testing::HasSubstr;

class CachePrune : public ::testing::Test {
 protected:
  std::string root() const { return (shell_.folder() / "cache").string(); }
  std::string add(Entry entry) const {
    EXPECT_TRUE(cache::testing::publish_in(root(), entry));
    return cache::testing::path_in(root(), entry);
  }
  json prune(std::vector<std::string> options) const {
    options.insert(options.begin(), {"cache", "prune", "--json"});
    const Outcome outcome = shell_.run(options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.json();
  }

  Shell shell_;
};

TEST_F(CachePrune, ByTheDateOfTheCompile) {
  const std::string old = add(make_entry(1));  // of January 2026
  Entry fresh = make_entry(2);
  fresh.metadata.date = "2999-01-01T00:00:00Z";
  const std::string kept = add(fresh);
  const json dry = prune({"--older-than", "1d", "--dry-run"});
  EXPECT_EQ(dry.at("removed").at(0).at("path"), old);
  EXPECT_TRUE(fs::exists(old));
  EXPECT_EQ(prune({"--older-than", "1d"}).at("removed").size(), 1);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(kept));
}

TEST_F(CachePrune, ByToolchain) {
  Entry other = make_entry(1);
  other.toolchain.compiler = "nvrtc 12.8";
  const std::string gone = add(other);
  const std::string kept = add(make_entry(2));
  EXPECT_EQ(prune({"--toolchain", "nvrtc 12."}).at("removed").size(), 1);
  EXPECT_FALSE(fs::exists(gone));
  EXPECT_TRUE(fs::exists(kept));
}

TEST_F(CachePrune, ByToolchainOtherThanTheCompilers) {
  if (!has_compiler(shell_)) GTEST_SKIP() << "no NVRTC";
  add(make_entry(1));
  ASSERT_EQ(shell_.run({"compile", "--quantize", "16x7168"}).exit_code, 0);
  const json result = prune({"--toolchain", "other"});
  EXPECT_EQ(result.at("removed").size(), 1);
  EXPECT_EQ(result.at("kept"), 1);
}

TEST_F(CachePrune, ByLastUse) {
  add(make_entry(1));
  EXPECT_EQ(prune({"--unused", "1h"}).at("removed").size(), 0);
  EXPECT_EQ(prune({"--unused", "0s"}).at("removed").size(), 1);
}

// The advice removes the bytes that it speaks of: no more than --max-size asks.
TEST_F(CachePrune, ToASizeButNotWhatWasJustPublished) {
  std::vector<std::string> paths;
  for (int kernel = 1; kernel <= 3; ++kernel) paths.push_back(add(make_entry(kernel)));
  // The second is the least recently used of the three.
  fs::last_write_time(paths[1], fs::last_write_time(paths[0]) - std::chrono::minutes(5));
  const std::string room = std::to_string(fs::file_size(paths[0]) + fs::file_size(paths[2]));
  EXPECT_EQ(prune({"--max-size", room}).at("kept"), 3);
  const Outcome advice = shell_.run({"cache", "prune", "--max-size", room});
  EXPECT_THAT(advice.out, HasSubstr("used in the last 10 minutes stay; with --recent the least"));
  EXPECT_EQ(prune({"--max-size", room, "--recent", "--dry-run"}).at("removed").size(), 1);
  const json followed = prune({"--max-size", room, "--recent"});
  EXPECT_EQ(followed.at("removed").at(0).at("path"), paths[1]);
  EXPECT_EQ(followed.at("kept"), 2);
  const Outcome alone = shell_.run({"cache", "prune", "--unused", "30d", "--recent"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--recent is given without --max-size"));
}

TEST_F(CachePrune, RefusesToGuess) {
  const Outcome outcome = shell_.run({"cache", "prune"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("no option selects entries"));
  EXPECT_THAT(shell_.run({"cache", "prune", "--unused", "soon"}).err,
              HasSubstr("--unused is 'soon'"));
  EXPECT_THAT(shell_.run({"cache", "prune", "--max-size", "x"}).err,
              HasSubstr("--max-size is 'x'"));
}

TEST(CacheStats, SumsWhatWasCounted) {
  const Shell shell;
  const std::string root = (shell.folder() / "cache").string();
  fs::create_directories(root);
  const cache::StatisticsLog log(root);
  ASSERT_TRUE(log.count(cache::CacheEvent::kMiss, 1500));
  ASSERT_TRUE(log.count(cache::CacheEvent::kHit, 1500));
  ASSERT_TRUE(log.count(cache::CacheEvent::kHit, 1500));
  const Outcome outcome = shell.run({"cache", "stats", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json total = outcome.json().at("total");
  EXPECT_EQ(total.at("hits"), 2);
  EXPECT_EQ(total.at("misses"), 1);
  EXPECT_DOUBLE_EQ(total.at("saved_seconds").get<double>(), 3.0);
  EXPECT_EQ(outcome.json().at("days").size(), 1);
  EXPECT_THAT(shell.run({"cache", "stats"}).out, HasSubstr("66.7 %"));
}

}  // namespace
}  // namespace octile::tests
