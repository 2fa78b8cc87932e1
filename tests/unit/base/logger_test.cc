#include "runtime/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace octile {
namespace {

TEST(Logger, DeliversFromTheMinimumLevelUp) {
  std::vector<std::string> seen;
  Logger logger([&](LogLevel, const std::string& m) { seen.push_back(m); }, LogLevel::kWarning);
  logger.log(LogLevel::kInfo, "info");
  logger.log(LogLevel::kWarning, "warning");
  logger.log(LogLevel::kError, "error");
  EXPECT_THAT(seen, testing::ElementsAre("warning", "error"));
  EXPECT_FALSE(logger.enabled(LogLevel::kInfo));
}

TEST(Logger, WithoutCallbackIsSilent) {
  Logger logger;
  EXPECT_FALSE(logger.enabled(LogLevel::kError));
  logger.log(LogLevel::kError, "nobody hears this");
}

TEST(Logger, OnceKeysAreUsedUpByDeliveryOnly) {
  std::vector<std::string> seen;
  Logger logger([&](LogLevel, const std::string& m) { seen.push_back(m); }, LogLevel::kWarning);
  logger.log_once("key", LogLevel::kDebug, "below the level");
  logger.log_once("key", LogLevel::kWarning, "first");
  logger.log_once("key", LogLevel::kWarning, "second");
  logger.log_once("other", LogLevel::kWarning, "third");
  EXPECT_THAT(seen, testing::ElementsAre("first", "third"));
}

TEST(Logger, ALongMessageKeepsItsBeginning) {
  std::vector<std::string> seen;
  Logger logger([&](LogLevel, const std::string& m) { seen.push_back(m); }, LogLevel::kDebug);
  logger.log(LogLevel::kWarning, std::string(kMaxMessageBytes, 'x'));
  logger.log(LogLevel::kWarning, std::string(std::size_t{200} << 20, 'x'));
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[0].size(), kMaxMessageBytes);
  EXPECT_EQ(seen[1].size(), kMaxMessageBytes);
  EXPECT_TRUE(seen[1].ends_with("x ..."));
}

TEST(Logger, SwallowsWhatTheCallbackThrows) {
  Logger logger([](LogLevel, const std::string&) { throw std::runtime_error("callback"); },
                LogLevel::kDebug);
  EXPECT_NO_THROW(logger.log(LogLevel::kError, "message"));
  EXPECT_NO_THROW(logger.log(LogLevel::kError, "the lock is free again"));
}

// The counter is not atomic, so a second callback at the same time is a race that loses counts and
// that ThreadSanitizer reports.
TEST(Logger, DeliveryIsSerialised) {
  constexpr int kThreads = 8;
  constexpr int kMessages = 500;
  int delivered = 0;
  Logger logger([&](LogLevel, const std::string&) { ++delivered; }, LogLevel::kDebug);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kMessages; ++i) logger.log(LogLevel::kInfo, "message");
      logger.log_once("key", LogLevel::kInfo, "once");
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(delivered, kThreads * kMessages + 1);
}

}  // namespace
}  // namespace octile
