// Every reader of a cache entry, with memory refused at every request of it. It gives the entry or
// says that it could not read: no refusal makes an intact entry a damaged one.
#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <string>

#include "cache/store.h"
#include "tests/process/faults.h"
#include "tests/support/cache_testing.h"

namespace octile::test {
namespace {

using cache::Entry;
using cache::testing::files_ending;
using cache::testing::make_entry;

class EntryMemory : public ::testing::Test {
 protected:
  EntryMemory() {
    entry_.identity.source.append(40'000, ' ');  // of a kernel's size, and its frame is small
    options_.writable_root = dir_ / "root";
    options_.log = log_.callback();
  }

  // Calls `read` with its n-th request refused, for every n, and then `expect`.
  template <typename Read, typename Expect>
  void every_refusal(const Read& read, const Expect& expect) {
    for (const Extent extent : {Extent::kOnce, Extent::kOn}) {
      std::int64_t requests = 0;
      for (bool is_past = false; !is_past; ++requests) {
        Refusal refusal(Refuse::kMemory, requests + 1, extent);
        read();
        refusal.end();
        is_past = refusal.refused() == 0;
        SCOPED_TRACE("request " + std::to_string(requests + 1) +
                     (extent == Extent::kOnce ? ", once" : " and on"));
        expect();
        if (HasFailure()) return;
      }
      EXPECT_GT(requests, 2);
    }
  }

  void expect_kept() {
    EXPECT_TRUE(files_ending(options_.writable_root, ".damaged").empty());
    EXPECT_EQ(files_ending(options_.writable_root, ".octile").size(), 1U);
    for (const std::string& warning : log_.warnings())
      EXPECT_EQ(warning.find("is not used"), std::string::npos) << warning;
  }

  const cache::testing::TempDir dir_;
  cache::testing::LogRecorder log_;
  Entry entry_ = make_entry();
  cache::StoreOptions options_;
};

TEST_F(EntryMemory, TheBytesOfAnIntactEntryAreNeverRefused) {
  const std::vector<std::uint8_t> bytes = cache::serialize(entry_);
  std::optional<bool> read;  // empty: it could not be read
  const auto expect = [&] { EXPECT_TRUE(read.value_or(true)); };
  const auto once = [&](auto reader) {
    every_refusal(
        [&, reader] {
          read.reset();
          try {
            read = reader().has_value();
          } catch (const std::bad_alloc&) {
          }
        },
        expect);
    EXPECT_EQ(read, true);  // the last pass is refused nothing
  };
  once([&] { return cache::deserialize(bytes); });
  once([&] { return cache::deserialize_head(bytes, bytes.size()); });
}

TEST_F(EntryMemory, ALookupSetsNothingAside) {
  cache::Store store(options_);
  ASSERT_TRUE(store.publish(entry_));
  const std::optional<cache::Toolchain> toolchains[] = {entry_.toolchain, std::nullopt};
  for (const auto& toolchain : toolchains) {
    std::optional<cache::Hit> hit;
    every_refusal([&] { hit = store.lookup(entry_.identity, toolchain); },
                  [&] {
                    expect_kept();
                    EXPECT_TRUE(!hit || hit->entry == entry_);
                  });
    EXPECT_TRUE(hit);
  }
}

}  // namespace
}  // namespace octile::test
