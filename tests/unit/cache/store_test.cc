// The store on a healthy disk: which entry a lookup returns, and where files lie.
#include "cache/store.h"

#include <sys/stat.h>

#include <thread>

#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;

class CacheStore : public ::testing::Test {
 protected:
  StoreOptions options(std::vector<std::string> read_only_roots = {}, bool strict = false) {
    StoreOptions options;
    options.writable_root = dir_ / "rw";
    options.read_only_roots = std::move(read_only_roots);
    options.strict = strict;
    options.log = log_.callback();
    return options;
  }
  // Makes a root with these entries, like a shipped bundle.
  std::string bundle(const std::string& name, const std::vector<Entry>& entries) {
    StoreOptions filling;
    filling.writable_root = dir_ / name;
    Store store(filling);
    for (const Entry& entry : entries) EXPECT_TRUE(store.publish(entry));
    return dir_ / name;
  }

  TempDir dir_;
  LogRecorder log_;
};

Entry of_toolchain(const std::string& compiler, const std::string& date, int variant = 0) {
  Entry entry = make_entry(0, variant);
  entry.toolchain.compiler = compiler;
  entry.metadata.date = date;
  return entry;
}

TEST_F(CacheStore, PublishThenLookup) {
  Store store(options());
  const Entry entry = make_entry();
  EXPECT_FALSE(store.lookup(entry.identity, entry.toolchain));
  EXPECT_TRUE(store.publish(entry));
  const auto hit = store.lookup(entry.identity, entry.toolchain);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->entry, entry);
  EXPECT_TRUE(hit->exact_toolchain);
  EXPECT_EQ(hit->path, path_in(dir_ / "rw", entry));
  EXPECT_TRUE(log_.warnings().empty());
}

TEST_F(CacheStore, OneFilePerKernelInPrivateFolders) {
  Store store(options());
  store.publish(make_entry());
  EXPECT_EQ(files_ending(dir_ / "rw", ""),
            (std::vector<std::string>{
                dir_ / "rw/v1",
                fs::path(path_in(dir_ / "rw", make_entry())).parent_path().string(),
                path_in(dir_ / "rw", make_entry()),
                dir_ / "rw/v1/usage",
            }));
  for (const char* folder : {"rw", "rw/v1"}) {
    EXPECT_EQ(fs::status(dir_ / folder).permissions(), fs::perms(0700)) << folder;
  }
}

TEST_F(CacheStore, AMovedRootStillHits) {
  const Entry entry = make_entry();
  {
    EXPECT_TRUE(Store(options()).publish(entry));
  }
  fs::rename(dir_ / "rw", dir_ / "moved");
  StoreOptions moved = options();
  moved.writable_root = dir_ / "moved/";
  EXPECT_TRUE(Store(moved).lookup(entry.identity, entry.toolchain));
}

TEST_F(CacheStore, EveryPartOfTheIdentityIsAMiss) {
  Store store(options());
  const Entry entry = make_entry();
  store.publish(entry);
  const auto misses = [&](auto change) {
    Entry other = entry;
    change(other);
    return !store.lookup(other.identity, other.toolchain);
  };
  EXPECT_TRUE(misses([](Entry& e) { e.identity.entry_name += "x"; }));
  EXPECT_TRUE(misses([](Entry& e) { e.identity.architecture = "sm_100a"; }));
  EXPECT_TRUE(misses([](Entry& e) { e.identity.options.emplace_back("-G"); }));
  EXPECT_TRUE(misses([](Entry& e) { e.identity.source += "\n"; }));
  EXPECT_TRUE(misses([](Entry& e) { e.toolchain.compiler = "nvrtc 12.8"; }));
  EXPECT_TRUE(misses([](Entry& e) { e.toolchain.build = "f"; }));
  EXPECT_FALSE(misses([](Entry& e) { e.metadata = {}; }));
}

// Simulates a digest collision: a valid entry of another kernel has this kernel's name.
TEST_F(CacheStore, AnotherKernelUnderTheNameIsAMiss) {
  Store store(options());
  const Entry wanted = make_entry(1);
  const Entry other = make_entry(2);
  write_bytes(path_in(dir_ / "rw", wanted), serialize(other));
  const auto listed = store.list();
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_FALSE(store.read(listed[0]));
  EXPECT_FALSE(store.read_bytes(listed[0]));
  EXPECT_FALSE(store.lookup(wanted.identity, wanted.toolchain));
  EXPECT_FALSE(store.lookup(wanted.identity, std::nullopt));
  ASSERT_EQ(log_.warnings().size(), 1U);
  EXPECT_NE(log_.warnings()[0].find("another kernel"), std::string::npos);
  EXPECT_TRUE(store.list().empty());  // the entry was set aside
  EXPECT_TRUE(store.publish(wanted));
  EXPECT_TRUE(store.lookup(wanted.identity, wanted.toolchain));
}

TEST_F(CacheStore, AnotherToolchainUnderTheNameIsAMiss) {
  Store store(options());
  Entry other = make_entry();
  other.toolchain.build = "another";
  write_bytes(path_in(dir_ / "rw", make_entry()), serialize(other));
  EXPECT_FALSE(store.lookup(make_entry().identity, make_entry().toolchain));
}

TEST_F(CacheStore, PublishingAgainReplaces) {
  Store store(options());
  store.publish(make_entry(0, 1));
  store.publish(make_entry(0, 2));
  const auto hit = store.lookup(make_entry().identity, make_entry().toolchain);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->entry, make_entry(0, 2));
  EXPECT_EQ(store.list().size(), 1U);
}

TEST_F(CacheStore, WritableRootMatchesTheToolchainExactly) {
  Store store(options());
  store.publish(of_toolchain("nvrtc 12.8", "2026-01-01T00:00:00Z"));
  EXPECT_FALSE(store.lookup(make_entry().identity, Toolchain{"nvrtc 13.0", "x"}));
}

TEST_F(CacheStore, WithoutACompilerTheNewestOfAllRootsAnswers) {
  const std::string shipped =
      bundle("shipped", {of_toolchain("nvrtc 12.8", "2026-03-01T00:00:00Z", 1),
                         of_toolchain("nvrtc 12.9", "2026-02-01T00:00:00Z", 2)});
  Store store(options({shipped}));
  store.publish(of_toolchain("nvrtc 13.0", "2026-01-01T00:00:00Z", 3));
  auto hit = store.lookup(make_entry().identity, std::nullopt);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->entry.toolchain.compiler, "nvrtc 12.8");
  EXPECT_FALSE(hit->exact_toolchain);

  store.publish(of_toolchain("nvrtc 13.1", "2026-04-01T00:00:00Z", 4));
  hit = store.lookup(make_entry().identity, std::nullopt);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->entry.toolchain.compiler, "nvrtc 13.1");
}

TEST_F(CacheStore, ReadOnlyRootsMatchAnyToolchainNewestFirst) {
  const std::string older = bundle("a", {of_toolchain("nvrtc 12.6", "2025-01-01T00:00:00Z", 1),
                                         of_toolchain("nvrtc 12.8", "2025-02-01T00:00:00Z", 2)});
  const std::string newer = bundle("b", {of_toolchain("nvrtc 12.9", "2025-03-01T00:00:00Z", 3)});
  const auto hit =
      Store(options({older, newer})).lookup(make_entry().identity, Toolchain{"nvrtc 13.0", "x"});
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->entry.toolchain.compiler, "nvrtc 12.9");
  EXPECT_FALSE(hit->exact_toolchain);
}

TEST_F(CacheStore, TheExactToolchainBeatsANewerEntry) {
  const std::string shipped = bundle("a", {of_toolchain("nvrtc 13.1", "2030-01-01T00:00:00Z", 1)});
  Store store(options({shipped}));
  const Entry own = of_toolchain("nvrtc 13.0", "2026-01-01T00:00:00Z", 2);
  store.publish(own);
  const auto hit = store.lookup(own.identity, own.toolchain);
  ASSERT_TRUE(hit);
  EXPECT_TRUE(hit->exact_toolchain);
  EXPECT_EQ(hit->entry, own);
}

TEST_F(CacheStore, ReadOnlyRootsComeFirstAmongExactMatches) {
  const std::string shipped = bundle("a", {make_entry(0, 1)});
  Store store(options({shipped}));
  store.publish(make_entry(0, 2));
  const auto hit = store.lookup(make_entry().identity, make_entry().toolchain);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->entry, make_entry(0, 1));
}

TEST_F(CacheStore, StrictNeverCrossesToolchains) {
  const std::string shipped = bundle("a", {of_toolchain("nvrtc 12.8", "2026-01-01T00:00:00Z")});
  Store store(options({shipped}, /*strict=*/true));
  EXPECT_FALSE(store.lookup(make_entry().identity, Toolchain{"nvrtc 13.0", "x"}));
  EXPECT_FALSE(store.lookup(make_entry().identity, std::nullopt));
  const Entry same = of_toolchain("nvrtc 12.8", "");
  EXPECT_TRUE(store.lookup(same.identity, same.toolchain));
}

TEST_F(CacheStore, NothingIsWrittenToAReadOnlyRoot) {
  const std::string shipped = bundle("a", {make_entry(1)});
  const auto before = files_ending(shipped, "");
  StoreOptions only_shipped = options({shipped});
  only_shipped.writable_root.clear();
  Store store(only_shipped);
  EXPECT_FALSE(store.publish(make_entry(2)));
  EXPECT_FALSE(store.lock(make_entry(2).identity, make_entry(2).toolchain).held());
  EXPECT_TRUE(store.lookup(make_entry(1).identity, make_entry(1).toolchain));
  EXPECT_EQ(files_ending(shipped, ""), before);
  EXPECT_TRUE(log_.warnings().empty());
}

TEST_F(CacheStore, ListShowsEveryEntryAndWhyOneDoesNotVerify) {
  const std::string shipped = bundle("a", {make_entry(1)});
  Store store(options({shipped}));
  store.publish(make_entry(2));
  store.publish(make_entry(3));
  std::vector<std::uint8_t> torn = serialize(make_entry(3));
  torn.pop_back();
  write_bytes(path_in(dir_ / "rw", make_entry(3)), torn);
  write_bytes(dir_ / "rw/v1/README", {'h', 'i'});  // does not belong to the cache and is ignored
  write_bytes(dir_ / "rw/v1/00/notes.txt", {'h', 'i'});

  const auto listed = store.list();
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed[0].path, path_in(shipped, make_entry(1)));
  EXPECT_FALSE(listed[0].writable_root);
  EXPECT_EQ(listed[0].bytes, static_cast<std::int64_t>(serialize(make_entry(1)).size()));
  int whole = 0;
  for (const Listing& listing : listed) {
    whole += listing.head && store.read(listing) ? 1 : 0;
    if (listing.path == path_in(dir_ / "rw", make_entry(3))) {
      ASSERT_FALSE(listing.head);
      EXPECT_NE(listing.head.error().sentence.find("size: "), std::string::npos);
      EXPECT_FALSE(listing.head.error().unread);
    }
  }
  EXPECT_EQ(whole, 2);
  const auto first = store.read(listed[0]);
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, make_entry(1));
  EXPECT_EQ(*store.read_bytes(listed[0]), serialize(make_entry(1)));
}

// A listing of 10 kernels of 1 MB reads a few pages of each.
TEST_F(CacheStore, AListingReadsHeadsOnly) {
  for (int kernel = 0; kernel < 10; ++kernel) {
    Entry entry = make_entry(kernel);
    entry.cubin.resize(std::size_t{1} << 20);
    // The metadata of the first kernel is longer than the first read.
    if (kernel == 0) entry.metadata.problem.assign(10'000, 'p');
    ASSERT_TRUE(publish_in(dir_ / "rw", entry));
  }
  class CountingOps : public FileOps {
   public:
    ssize_t read(int fd, std::span<std::uint8_t> into) override {
      const ssize_t n = FileOps::read(fd, into);
      bytes += n;
      return n;
    }
    ssize_t bytes = 0;
  };
  StoreOptions counting = options();
  const auto ops = std::make_shared<CountingOps>();
  counting.file_ops = ops;
  Store store(counting);
  const auto listed = store.list();
  ASSERT_EQ(listed.size(), 10U);
  for (const Listing& listing : listed) {
    ASSERT_TRUE(listing.head) << listing.head.error().sentence;
    EXPECT_EQ(listing.head->cubin_bytes, std::size_t{1} << 20);
  }
  EXPECT_LT(ops->bytes, 3 << 20);  // one complete entry and nine heads
}

TEST_F(CacheStore, AbandonedFilesOfTheFolderAreRemovedOnPublish) {
  Store store(options());
  const Entry entry = make_entry();
  const FileStem stem = stem_of(entry);
  const std::string folder = fs::path(path_in(dir_ / "rw", entry)).parent_path().string() + "/";
  const FileStem neighbour{stem.folder() + std::string(30, '0'), std::string(32, '1')};
  const std::string old_temporary = folder + neighbour.temporary_name();
  const std::string young_temporary = folder + neighbour.temporary_name();
  const std::string old_lock = folder + neighbour.lock_name();
  const std::string old_entry = folder + neighbour.entry_name();
  const std::string foreign = folder + "foreign.tmp";
  const auto two_hours_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
  for (const auto& path : {old_temporary, young_temporary, old_lock, old_entry, foreign}) {
    write_bytes(path, {});
    if (path != young_temporary) fs::last_write_time(path, two_hours_ago);
  }
  EXPECT_TRUE(store.publish(entry));
  EXPECT_FALSE(fs::exists(old_temporary));
  EXPECT_FALSE(fs::exists(old_lock));
  EXPECT_TRUE(fs::exists(young_temporary));
  EXPECT_TRUE(fs::exists(old_entry));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(CacheStore, AHeldLockIsNotAbandonedHoweverOld) {
  Store store(options());
  const Entry entry = make_entry();
  const auto lock = store.lock(entry.identity, entry.toolchain);
  ASSERT_TRUE(lock.held());
  const auto files = files_ending(dir_ / "rw", ".lock");
  ASSERT_EQ(files.size(), 1U);
  fs::last_write_time(files[0], fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_TRUE(store.publish(entry));
  EXPECT_TRUE(fs::exists(files[0]));
}

TEST_F(CacheStore, ALockLeavesNothingBehind) {
  Store store(options());
  const Entry entry = make_entry();
  {
    EXPECT_TRUE(store.lock(entry.identity, entry.toolchain).held());
  }
  EXPECT_TRUE(files_ending(dir_ / "rw", ".lock").empty());
}

TEST_F(CacheStore, AMovedLockStaysHeld) {
  StoreOptions impatient = options();
  impatient.lock_timeout = std::chrono::milliseconds(0);
  Store store(impatient);
  const Entry entry = make_entry();
  Store::Lock outer;
  {
    Store::Lock inner = store.lock(entry.identity, entry.toolchain);
    outer = std::move(inner);
  }
  EXPECT_TRUE(outer.held());
  EXPECT_FALSE(store.lock(entry.identity, entry.toolchain).held());
  outer = Store::Lock();
  EXPECT_TRUE(store.lock(entry.identity, entry.toolchain).held());
}

// Also runs under ThreadSanitizer: the store locks only its reports, not its work.
TEST_F(CacheStore, ThreadsShareOneStore) {
  Store store(options());
  constexpr int kThreads = 8;
  constexpr int kRounds = 20;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const Entry entry = make_entry(round % 3, t);
        if (!store.publish(entry)) ++wrong;
        const auto hit = store.lookup(entry.identity, entry.toolchain);
        if (!hit || hit->entry.identity != entry.identity) ++wrong;
        store.list();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(log_.warnings().empty()) << log_.warnings()[0];
  EXPECT_EQ(store.list().size(), 3U);
}

TEST(CacheDefaultRoot, FollowsTheEnvironment) {
  EXPECT_EQ(default_root("/c", "/x", "/h"), "/c");
  EXPECT_EQ(default_root("relative", "/x", "/h"), "relative");
  EXPECT_EQ(default_root("", "/x", "/h"), "/x/octile");
  EXPECT_EQ(default_root("", "relative", "/h"), "/h/.cache/octile");
  EXPECT_EQ(default_root("", "", "/h"), "/h/.cache/octile");
  EXPECT_EQ(default_root("", "", "relative"), "");
  EXPECT_EQ(default_root("", "", ""), "");
}

}  // namespace
}  // namespace octile::cache
