// Eviction, readers, writers and prune run at once: every hit is right, nothing fails, and the
// limit holds.
#include <cstdlib>
#include <thread>

#include "cache/eviction.h"
#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;
using Clock = std::chrono::steady_clock;

// Returns OCTILE_RACE_SECONDS. Thorough runs take a minute; the default of three seconds suits
// every run.
std::chrono::seconds duration() {
  constexpr int kDefault = 3;
  const char* text = std::getenv("OCTILE_RACE_SECONDS");
  return std::chrono::seconds(text != nullptr ? std::atoi(text) : kDefault);
}

TEST(CacheRace, EvictionReadersAndWriters) {
  constexpr int kKernels = 60;
  constexpr int kWriters = 4;
  const TempDir dir;
  const auto entry_bytes = static_cast<std::int64_t>(serialize(make_entry()).size());
  LogRecorder log;
  StoreOptions options;
  options.writable_root = dir / "root";
  options.bound = {20 * entry_bytes, std::chrono::seconds(0)};
  options.log = log.callback();
  options.file_ops = std::make_shared<HookedOps>([](Op) { return std::nullopt; });

  const auto end = Clock::now() + duration();
  std::atomic<int> hits = 0;
  std::atomic<int> evicted = 0;
  const auto write = [&](int first) {
    Store store(options);
    for (int i = first; Clock::now() < end; ++i)
      EXPECT_TRUE(store.publish(make_entry(i % kKernels)));
  };
  const auto read = [&](int first) {
    Store store(options);
    for (int i = first; Clock::now() < end; ++i) {
      const Entry entry = make_entry(i % kKernels);
      const auto hit = store.lookup(entry.identity, entry.toolchain);
      if (!hit) continue;
      EXPECT_EQ(hit->entry, entry);
      ++hits;
    }
  };
  const auto prune_often = [&] {
    PruneOptions look;
    look.max_bytes = 10 * entry_bytes;
    look.protect = std::chrono::seconds(0);
    while (Clock::now() < end) {
      const auto result = prune(dir / "root", look, options.file_ops);
      ASSERT_TRUE(result) << result.error().sentence;
      evicted += static_cast<int>(result->removed.size());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) threads.emplace_back(write, i * kKernels / kWriters);
  for (int i = 0; i < 3; ++i) threads.emplace_back(read, i * kKernels / 3);
  threads.emplace_back(prune_often);
  for (std::thread& thread : threads) thread.join();

  EXPECT_TRUE(log.warnings().empty()) << ::testing::PrintToString(log.warnings());
  EXPECT_GT(hits, 0);
  EXPECT_GT(evicted, 0);
  // After the writers have stopped, one more publish removes the excess of their simultaneous
  // publishes.
  EXPECT_TRUE(Store(options).publish(make_entry(kKernels)));
  std::int64_t total = 0;
  for (const std::string& file : files_ending(dir / "root", ".octile")) {
    total += static_cast<std::int64_t>(fs::file_size(file));
  }
  EXPECT_LE(total, options.bound.max_bytes + entry_bytes);
  EXPECT_TRUE(files_ending(dir / "root", ".tmp").empty());
}

}  // namespace
}  // namespace octile::cache
