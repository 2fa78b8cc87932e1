// Which entries leave a root and which stay, and how seldom the entries are scanned.
#include "cache/eviction.h"

#include <cstring>

#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;
using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

class CacheEviction : public ::testing::Test {
 protected:
  CacheEviction() { options_.writable_root = root_; }

  // Puts an entry that was last used `age` ago.
  void put(int kernel, seconds age) {
    const std::string path = path_in(root_, make_entry(kernel));
    write_bytes(path, serialize(make_entry(kernel)));
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
  }
  bool has(int kernel) { return fs::exists(path_in(root_, make_entry(kernel))); }
  std::vector<int> kept(int kernels) {
    std::vector<int> found;
    for (int kernel = 0; kernel < kernels; ++kernel) {
      if (has(kernel)) found.push_back(kernel);
    }
    return found;
  }
  std::int64_t entry_bytes() { return static_cast<std::int64_t>(serialize(make_entry()).size()); }
  std::int64_t total() {
    std::int64_t bytes = 0;
    for (const std::string& file : files_ending(root_, ".octile")) {
      bytes += static_cast<std::int64_t>(fs::file_size(file));
    }
    return bytes;
  }

  TempDir dir_;
  std::string root_ = dir_ / "root";
  StoreOptions options_;
};

// --- prune ---

TEST_F(CacheEviction, TheLeastRecentlyUsedGoFirst) {
  for (int kernel = 0; kernel < 5; ++kernel) put(kernel, hours(1 + (kernel * 3) % 5));
  PruneOptions options;
  options.max_bytes = 3 * entry_bytes();
  const auto result = prune(root_, options);
  ASSERT_TRUE(result);
  ASSERT_EQ(result->removed.size(), 2U);  // the ages are 1 4 2 5 3
  EXPECT_EQ(result->removed[0].path, path_in(root_, make_entry(3)));
  EXPECT_EQ(result->removed[1].path, path_in(root_, make_entry(1)));
  EXPECT_EQ(kept(5), (std::vector{0, 2, 4}));
  EXPECT_EQ(result->kept_entries, 3);
  EXPECT_EQ(result->kept_bytes, total());
}

TEST_F(CacheEviction, ADryRunTellsTheSameAndRemovesNothing) {
  for (int kernel = 0; kernel < 4; ++kernel) put(kernel, hours(kernel + 1));
  PruneOptions options;
  options.max_bytes = 2 * entry_bytes();
  options.dry_run = true;
  const auto told = prune(root_, options);
  EXPECT_EQ(kept(4).size(), 4U);
  options.dry_run = false;
  const auto done = prune(root_, options);
  ASSERT_TRUE(told && done);
  ASSERT_EQ(told->removed.size(), done->removed.size());
  for (std::size_t i = 0; i < told->removed.size(); ++i) {
    EXPECT_EQ(told->removed[i].path, done->removed[i].path);
  }
  EXPECT_EQ(told->kept_bytes, done->kept_bytes);
}

TEST_F(CacheEviction, WhatIsUnwantedGoesHoweverRecent) {
  for (int kernel = 0; kernel < 3; ++kernel) put(kernel, seconds(0));
  PruneOptions options;
  options.unwanted = [this](const StoredEntry& entry) {
    return entry.path == path_in(root_, make_entry(1));
  };
  const auto result = prune(root_, options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->removed_bytes, entry_bytes());
  EXPECT_EQ(kept(3), (std::vector{0, 2}));
}

TEST_F(CacheEviction, WhatIsRecentStaysWhateverTheBound) {
  put(0, minutes(5));
  put(1, -minutes(5));  // a file server whose clock is ahead
  put(2, minutes(15));
  put(3, -hours(48));  // a clock that was set back: not protected for two days
  PruneOptions options;
  options.max_bytes = 0;
  ASSERT_TRUE(prune(root_, options));
  EXPECT_EQ(kept(4), (std::vector{0, 1}));
}

TEST_F(CacheEviction, ForeignFilesStay) {
  put(0, hours(1));
  write_bytes(root_ + "/v1/00/notes.txt", {1});
  write_bytes(root_ + "/tuning.jsonl", {1});
  PruneOptions options;
  options.max_bytes = 0;
  ASSERT_TRUE(prune(root_, options));
  EXPECT_EQ(kept(1).size(), 0U);
  EXPECT_TRUE(fs::exists(root_ + "/v1/00/notes.txt"));
  EXPECT_TRUE(fs::exists(root_ + "/tuning.jsonl"));
}

// A file in the place of a folder of entries is passed over and told.
TEST_F(CacheEviction, AForeignFileInPlaceOfAFolderDoesNotStopIt) {
  for (int kernel = 0; kernel < 4; ++kernel) put(kernel, hours(1));
  std::string foreign;
  for (const char* name : {"00", "77", "ff"}) {
    if (!fs::exists(root_ + "/v1/" + name)) foreign = root_ + "/v1/" + name;
  }
  write_bytes(foreign, {1});
  PruneOptions options;
  options.max_bytes = 0;
  const auto result = prune(root_, options);
  ASSERT_TRUE(result);
  EXPECT_EQ(kept(4).size(), 0U);
  ASSERT_EQ(result->unread.size(), 1U);
  EXPECT_EQ(result->unread[0].path, foreign);
  EXPECT_NE(result->unread[0].reason.find("Not a directory"), std::string::npos);
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(CacheEviction, AStoreKeepsItsBoundDespiteAForeignFileAndSaysSoOnce) {
  LogRecorder log;
  options_.log = log.callback();
  options_.bound = {10 * entry_bytes(), seconds(0)};
  for (const char* name : {"/v1/00", "/v1/a folder that is none"}) write_bytes(root_ + name, {1});
  Store store(options_);
  for (int kernel = 0; kernel < 50; ++kernel) {
    if (stem_of(make_entry(kernel)).folder() == "00") continue;
    ASSERT_TRUE(store.publish(make_entry(kernel)));
  }
  EXPECT_LE(total(), options_.bound.max_bytes);
  ASSERT_EQ(log.warnings().size(), 1U) << ::testing::PrintToString(log.warnings());
  EXPECT_NE(log.warnings()[0].find("/v1/00 is passed over"), std::string::npos)
      << log.warnings()[0];
}

// A count that cannot be kept is said too: the root would grow without end.
TEST_F(CacheEviction, AStoreSaysThatItCannotKeepItsBound) {
  LogRecorder log;
  options_.log = log.callback();
  fs::create_directories(root_ + "/v1/usage");
  fs::permissions(root_, fs::perms(0700));
  Store store(options_);
  for (int kernel = 0; kernel < 3; ++kernel) EXPECT_TRUE(store.publish(make_entry(kernel)));
  ASSERT_EQ(log.warnings().size(), 1U);
  EXPECT_NE(log.warnings()[0].find("its size is not bounded"), std::string::npos);
}

TEST_F(CacheEviction, WhatCannotBeRemovedIsTold) {
  for (int kernel = 0; kernel < 3; ++kernel) put(kernel, hours(1));
  const auto ops = std::make_shared<HookedOps>(
      [](Op op) { return op == Op::kUnlink ? std::optional(EACCES) : std::nullopt; });
  PruneOptions options;
  options.max_bytes = 0;
  const auto result = prune(root_, options, ops);
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->removed.empty());
  EXPECT_EQ(result->kept_entries, 3);
  ASSERT_EQ(result->failed.size(), 3U);
  EXPECT_NE(result->failed[0].reason.find("cannot remove"), std::string::npos);
}

TEST_F(CacheEviction, ARootThatDoesNotExistIsAnEmptyResult) {
  PruneOptions options;
  options.max_bytes = 0;
  const auto result = prune(root_, options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->kept_entries, 0);
  EXPECT_FALSE(fs::exists(root_));
}

// An entry that is used between the scan and its removal stays.
TEST_F(CacheEviction, AnEntryUsedMeanwhileStays) {
  put(0, hours(2));
  put(1, hours(1));
  int stats = 0;
  const auto ops = std::make_shared<HookedOps>([&](Op op) -> std::optional<int> {
    if (op == Op::kUnlink && stats++ == 0) {  // before the removal of 0
      fs::last_write_time(path_in(root_, make_entry(1)), fs::file_time_type::clock::now());
    }
    return std::nullopt;
  });
  PruneOptions options;
  options.max_bytes = 0;
  const auto result = prune(root_, options, ops);
  ASSERT_TRUE(result);
  EXPECT_EQ(kept(2), (std::vector{1}));
  EXPECT_EQ(result->kept_entries, 1);
}

// --- the size limit of a store ---

TEST_F(CacheEviction, AStoreKeepsItsBound) {
  options_.bound = {10 * entry_bytes(), seconds(0)};
  Store store(options_);
  for (int kernel = 0; kernel < 50; ++kernel) {
    ASSERT_TRUE(store.publish(make_entry(kernel)));
    EXPECT_LE(total(), options_.bound.max_bytes);
    EXPECT_TRUE(has(kernel)) << "what was just published";
  }
  EXPECT_GE(total(), 8 * entry_bytes());
}

TEST_F(CacheEviction, WithoutABoundNothingIsCounted) {
  options_.bound.max_bytes = 0;
  Store store(options_);
  ASSERT_TRUE(store.publish(make_entry()));
  EXPECT_FALSE(fs::exists(root_ + "/v1/usage"));
}

// Many publishes stay under the limit. Only the first lists all folders, because it does not know
// the size.
TEST_F(CacheEviction, APublishSeldomLooksAtTheWholeRoot) {
  int lists = 0;
  options_.file_ops = std::make_shared<HookedOps>([&](Op op) {
    lists += op == Op::kList ? 1 : 0;
    return std::nullopt;
  });
  Store store(options_);
  for (int kernel = 0; kernel < 20; ++kernel) ASSERT_TRUE(store.publish(make_entry(kernel)));
  lists = 0;
  for (int kernel = 20; kernel < 40; ++kernel) ASSERT_TRUE(store.publish(make_entry(kernel)));
  EXPECT_EQ(lists, 20) << "each its own folder, to tidy it";
  lists = 0;
  ASSERT_TRUE(store.lookup(make_entry(0).identity, make_entry(0).toolchain));
  EXPECT_EQ(lists, 0);
}

// In a burst of recent entries beyond the limit, a scan runs only after another tenth of the limit.
TEST_F(CacheEviction, ARootFullOfProtectedEntriesIsNotLookedAtForEachPublish) {
  options_.bound.max_bytes = 20 * entry_bytes();
  int lists = 0;
  options_.file_ops = std::make_shared<HookedOps>([&](Op op) {
    lists += op == Op::kList ? 1 : 0;
    return std::nullopt;
  });
  Store store(options_);
  for (int kernel = 0; kernel < 22; ++kernel) ASSERT_TRUE(store.publish(make_entry(kernel)));
  lists = 0;
  ASSERT_TRUE(store.publish(make_entry(22)));
  EXPECT_EQ(lists, 1);
  EXPECT_EQ(kept(23).size(), 23U);
}

TEST_F(CacheEviction, AnUnreadableCountIsFoundAnew) {
  options_.bound = {4 * entry_bytes(), seconds(0)};
  for (int kernel = 0; kernel < 10; ++kernel) put(kernel, hours(kernel + 1));
  for (const char* text : {"", "x", "-0000000000000000001 00000000000000000000 9\n"}) {
    write_bytes(root_ + "/v1/usage", std::vector<std::uint8_t>(text, text + std::strlen(text)));
    put(10, hours(20));
    Store(options_).publish(make_entry(11));
    EXPECT_LE(total(), options_.bound.max_bytes) << text;
    EXPECT_EQ(fs::file_size(root_ + "/v1/usage"), 63U);
  }
}

// --- the stamp ---

TEST_F(CacheEviction, AHitRefreshesAStampThatIsOlderThanAnHour) {
  const auto age = [this] {
    return fs::file_time_type::clock::now() - fs::last_write_time(path_in(root_, make_entry()));
  };
  Store store(options_);
  put(0, minutes(50));
  ASSERT_TRUE(store.lookup(make_entry().identity, make_entry().toolchain));
  EXPECT_GT(age(), minutes(40));
  put(0, minutes(70));
  store.list();
  EXPECT_GT(age(), minutes(60));
  ASSERT_TRUE(store.lookup(make_entry().identity, make_entry().toolchain));
  EXPECT_LT(age(), minutes(10));
}

}  // namespace
}  // namespace octile::cache
