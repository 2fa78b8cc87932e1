// A real entry as the engine publishes it. The reader detects every damage to its bytes, and a call
// that meets a damaged entry compiles and replaces it.
#include <gtest/gtest.h>

#include <random>

#include "runtime/engine/engine.h"
#include "tests/support/api_handles.h"
#include "tests/support/cache_testing.h"
#include "tests/support/coverage.h"

namespace octile {
namespace {

using Bytes = std::vector<std::uint8_t>;

class RealEntry : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    const auto built = build();
    ASSERT_TRUE(built) << built.error().message;
    const auto files = cache::testing::files_ending(cache_.path(), ".octile");
    ASSERT_EQ(files.size(), 1U);
    path_ = files[0];
    whole_ = cache::testing::read_bytes(path_);
    cubin_ = built->kernel->cubin;
  }
  // Uses a handle of its own, as a new process would.
  Result<Built> build() {
    warnings_ = 0;
    Logger logger(
        [this](LogLevel level, const std::string&) { warnings_ += level == LogLevel::kWarning; },
        LogLevel::kWarning);
    EngineOptions options;
    options.writable_root = cache_.path();
    Engine engine(options, logger);
    return engine.kernel_for(*parse_problem(test::kQuantizeText), 1, *find_device("h200"));
  }
  // Changes two to seventeen bytes anywhere.
  Bytes corrupted(std::mt19937_64& random) const {
    Bytes bytes = whole_;
    const std::size_t edits = 2 + random() % 16;
    for (std::size_t i = 0; i < edits; ++i) {
      bytes[random() % bytes.size()] ^= static_cast<std::uint8_t>(1 + random() % 255);
    }
    return bytes;
  }

  test::TempFolder cache_;
  std::string path_;
  Bytes whole_, cubin_;
  int warnings_ = 0;
};

TEST_F(RealEntry, EveryTruncationAndEveryBitFlipIsDetected) {
  for (std::size_t size = 0; size < whole_.size(); ++size) {
    ASSERT_FALSE(cache::deserialize(std::span(whole_).first(size))) << "cut to " << size;
  }
  Bytes bytes = whole_;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (unsigned bit = 1; bit < 256; bit <<= 1) {
      bytes[i] ^= static_cast<std::uint8_t>(bit);
      ASSERT_FALSE(cache::deserialize(bytes)) << "byte " << i << " bit mask " << bit;
      bytes[i] ^= static_cast<std::uint8_t>(bit);
    }
  }
  EXPECT_TRUE(cache::deserialize(bytes));
}

TEST_F(RealEntry, TenThousandRandomCorruptionsAreDetected) {
  std::mt19937_64 random(20260131);
  for (int round = 0; round < 10'000; ++round) {
    const Bytes bytes = corrupted(random);
    if (bytes != whole_) {  // two edits of one byte may cancel
      ASSERT_FALSE(cache::deserialize(bytes)) << "round " << round;
    }
  }
}

TEST_F(RealEntry, ACallThatMeetsADamagedEntryCompilesAndMendsIt) {
  std::mt19937_64 random(20260201);
  const int rounds = tests::runs_all_cases() ? 200 : 20;  // a round compiles for 0.2 s
  for (int round = 0; round < rounds; ++round) {
    Bytes bytes = corrupted(random);
    if (round % 2 == 1) bytes.resize(random() % bytes.size());
    cache::testing::write_bytes(path_, bytes);
    const auto built = build();
    ASSERT_TRUE(built) << built.error().message;
    EXPECT_EQ(built->state, CacheState::kMiss) << "round " << round;
    EXPECT_EQ(built->kernel->cubin, cubin_) << "round " << round;
    // A damaged header may claim another version; such an entry is replaced without a warning.
    EXPECT_EQ(warnings_, cache::is_other_version(bytes) ? 0 : 1) << "round " << round;
    EXPECT_TRUE(cache::deserialize(cache::testing::read_bytes(path_))) << "round " << round;
  }
  const auto hit = build();
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->state, CacheState::kHit);
  EXPECT_EQ(warnings_, 0);
}

}  // namespace
}  // namespace octile
