// Roots that cannot serve: foreign files, links, full and read-only disks, users without rights.
// The result is always a miss and one warning, never a failed call.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cache_disks.h"
#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;

// --- files and folders that are not what their names say ---

class CacheForeign : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.writable_root = root_;
    options_.log = log_.callback();
    options_.lock_timeout = std::chrono::milliseconds(50);
  }
  void expect_miss_with_one_warning(const std::string& part) {
    Store store(options_);
    EXPECT_FALSE(store.lookup(entry_.identity, entry_.toolchain));
    EXPECT_FALSE(store.lookup(entry_.identity, std::nullopt));
    ASSERT_EQ(log_.warnings().size(), 1U);
    EXPECT_NE(log_.warnings()[0].find(part), std::string::npos) << log_.warnings()[0];
  }

  TempDir dir_;
  std::string root_ = dir_ / "root";
  Entry entry_ = make_entry();
  std::string path_ = path_in(root_, entry_);
  LogRecorder log_;
  StoreOptions options_;
};

TEST_F(CacheForeign, ALinkIsNotRead) {
  write_bytes(dir_ / "elsewhere", serialize(entry_));
  fs::create_directories(fs::path(path_).parent_path());
  fs::create_symlink(dir_ / "elsewhere", path_);
  expect_miss_with_one_warning("symbolic link");
  EXPECT_TRUE(Store(options_).publish(entry_));  // replaces the link, not its target
  EXPECT_FALSE(fs::is_symlink(path_));
  EXPECT_EQ(read_bytes(dir_ / "elsewhere"), serialize(entry_));
}

TEST_F(CacheForeign, ALinkedFolderIsNotEntered) {
  Store(options_).publish(entry_);
  fs::rename(root_ + "/v1", dir_ / "elsewhere");
  fs::create_directory_symlink(dir_ / "elsewhere", root_ + "/v1");
  expect_miss_with_one_warning("v1");
  EXPECT_FALSE(Store(options_).publish(entry_));
}

TEST_F(CacheForeign, ARootMayBeALink) {
  fs::create_directories(dir_ / "real");
  fs::create_directory_symlink(dir_ / "real", root_);
  Store store(options_);
  EXPECT_TRUE(store.publish(entry_));
  EXPECT_TRUE(store.lookup(entry_.identity, entry_.toolchain));
}

TEST_F(CacheForeign, AFolderIsNotAnEntry) {
  fs::create_directories(path_);
  expect_miss_with_one_warning("not a regular file");
}

// Opening a FIFO for reading would wait for a writer for ever.
TEST_F(CacheForeign, AFifoIsNotAnEntry) {
  fs::create_directories(fs::path(path_).parent_path());
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_miss_with_one_warning("not a regular file");
}

TEST_F(CacheForeign, AFileBeyondTheLimitIsNotRead) {
  write_bytes(path_, serialize(entry_));
  fs::resize_file(path_, kMaxEntryBytes + 1);  // the file is sparse
  expect_miss_with_one_warning("at most 67108864 are read");
}

TEST_F(CacheForeign, AnEntryBeyondTheLimitIsNotPublished) {
  Store store(options_);
  Entry large = entry_;
  large.cubin.resize(kMaxEntryBytes);
  EXPECT_FALSE(store.publish(large));
  large = entry_;
  large.identity.source.assign(kMaxKeyTextBytes, ' ');
  EXPECT_FALSE(store.publish(large));
  EXPECT_EQ(log_.warnings().size(), 1U);
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(CacheForeign, ARootThatIsAFile) {
  write_bytes(root_, {1, 2, 3});
  Store store(options_);
  EXPECT_FALSE(store.lookup(entry_.identity, entry_.toolchain));
  EXPECT_FALSE(store.lock(entry_.identity, entry_.toolchain).held());
  EXPECT_FALSE(store.publish(entry_));
  EXPECT_TRUE(store.list().empty());
  EXPECT_EQ(log_.warnings().size(), 1U);
  EXPECT_EQ(read_bytes(root_).size(), 3U);
}

TEST_F(CacheForeign, AnAbsentReadOnlyRootIsToldOnce) {
  options_.read_only_roots = {dir_ / "nowhere"};
  Store store(options_);
  EXPECT_FALSE(store.lookup(entry_.identity, entry_.toolchain));
  EXPECT_TRUE(store.publish(entry_));
  EXPECT_TRUE(store.lookup(entry_.identity, entry_.toolchain));
  ASSERT_EQ(log_.warnings().size(), 1U);
  EXPECT_NE(log_.warnings()[0].find("nowhere: No such file"), std::string::npos);
  EXPECT_FALSE(fs::exists(dir_ / "nowhere"));
}

TEST_F(CacheForeign, NoRootAtAll) {
  options_.writable_root = default_root("", "", "");  // HOME unset
  Store store(options_);
  EXPECT_FALSE(store.lookup(entry_.identity, entry_.toolchain));
  EXPECT_FALSE(store.lock(entry_.identity, entry_.toolchain).held());
  EXPECT_FALSE(store.publish(entry_));
  EXPECT_TRUE(store.list().empty());
  EXPECT_TRUE(log_.warnings().empty());
}

TEST_F(CacheForeign, ALoggerThatThrowsFailsNoCall) {
  write_bytes(root_, {1});
  options_.log = [](Severity, const std::string&) { throw std::runtime_error("logger"); };
  Store store(options_);
  EXPECT_FALSE(store.lookup(entry_.identity, entry_.toolchain));
  EXPECT_FALSE(store.publish(entry_));
  EXPECT_FALSE(store.lock(entry_.identity, entry_.toolchain).held());
  options_.log = [](Severity, const std::string&) { throw 1; };
  EXPECT_FALSE(Store(options_).publish(entry_));
}

// --- who may write ---

TEST_F(CacheForeign, WhatOthersMayWriteIsRefused) {
  ASSERT_TRUE(Store(options_).publish(entry_));
  const std::string folder = fs::path(path_).parent_path();
  for (const std::string& part : {root_, root_ + "/v1", folder, path_}) {
    const fs::perms before = fs::status(part).permissions();
    for (const fs::perms bit : {fs::perms::group_write, fs::perms::others_write}) {
      fs::permissions(part, before | bit);
      LogRecorder log;
      options_.log = log.callback();
      Store store(options_);
      EXPECT_FALSE(store.lookup(entry_.identity, entry_.toolchain)) << part;
      EXPECT_FALSE(store.lookup(entry_.identity, std::nullopt)) << part;
      ASSERT_EQ(log.warnings().size(), 1U) << part;
      EXPECT_NE(log.warnings()[0].find(part + ": its mode is"), std::string::npos)
          << log.warnings()[0];
    }
    fs::permissions(part, before);
    EXPECT_TRUE(Store(options_).lookup(entry_.identity, entry_.toolchain));
  }
}

TEST_F(CacheForeign, WhatBelongsToAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_TRUE(Store(options_).publish(entry_));
  options_.writable_root.clear();
  options_.read_only_roots = {root_};
  constexpr uid_t kSomebody = 12345;
  for (const std::string& part : {root_, path_}) {
    ASSERT_EQ(::chown(part.c_str(), kSomebody, kSomebody), 0);
    LogRecorder log;
    options_.log = log.callback();
    EXPECT_FALSE(Store(options_).lookup(entry_.identity, entry_.toolchain)) << part;
    ASSERT_FALSE(log.warnings().empty());
    EXPECT_NE(log.warnings()[0].find("belongs to user 12345"), std::string::npos);
    ASSERT_EQ(::chown(part.c_str(), 0, 0), 0);
  }
}

// A folder that others may write, as a volume of a pod, can have one for each user below it.
TEST_F(CacheForeign, AFolderOfTheUsersOwnBelowASharedOneIsMadeOnRequest) {
  fs::create_directory(root_);
  fs::permissions(root_, fs::perms(02775));
  options_.writable_root = default_root(root_, "", "");
  EXPECT_FALSE(Store(options_).publish(entry_));
  ASSERT_FALSE(log_.warnings().empty());
  EXPECT_NE(log_.warnings()[0].find("OCTILE_CACHE_DIR " + root_ + "/{user} makes one"),
            std::string::npos)
      << log_.warnings()[0];
  options_.writable_root = default_root(root_ + "/{user}", "", "");
  const std::string own = root_ + "/" + std::to_string(::geteuid());
  EXPECT_EQ(options_.writable_root, own);
  EXPECT_TRUE(Store(options_).publish(entry_));
  EXPECT_TRUE(Store(options_).lookup(entry_.identity, entry_.toolchain));
  EXPECT_EQ(fs::status(own).permissions() & fs::perms(0777), fs::perms(0700));
}

TEST_F(CacheForeign, ARootOfRootThatNobodyElseMayWriteIsRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_TRUE(Store(options_).publish(entry_));
  fs::permissions(fs::path(root_).parent_path(), fs::perms(0755));
  for (const auto& part : fs::recursive_directory_iterator(root_))
    fs::permissions(part, part.is_directory() ? fs::perms(0755) : fs::perms(0644));
  fs::permissions(root_, fs::perms(0755));
  for (const bool writable : {false, true}) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setresuid(12345, 12345, 12345) != 0) ::_exit(2);
      options_.read_only_roots.clear();
      options_.writable_root = writable ? root_ : "";
      if (!writable) options_.read_only_roots = {root_};
      ::_exit(Store(options_).lookup(entry_.identity, entry_.toolchain) ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << (writable ? "the writable root" : "a read-only root");
  }
}

// --- entries that are set aside ---

TEST_F(CacheForeign, DamagedEntriesAreSetAsideAndFew) {
  constexpr std::size_t kMost = 4;
  const std::string folder = fs::path(path_).parent_path();
  for (std::size_t i = 0; i < 2 * kMost; ++i) {
    write_bytes(path_, {1, 2, 3});
    EXPECT_FALSE(Store(options_).lookup(entry_.identity, entry_.toolchain));
    EXPECT_FALSE(fs::exists(path_));
    EXPECT_EQ(files_ending(folder, ".damaged").size(), std::min(i + 1, kMost));
    // Pretends that it was another entry of the folder.
    const std::string damaged = folder + "/" + stem_of(entry_).damaged_name();
    const std::string other = folder + "/" + std::to_string(i) + std::string(31, '0') + "-" +
                              std::string(32, '0') + ".damaged";
    if (fs::exists(damaged)) fs::rename(damaged, other);
  }
}

TEST_F(CacheForeign, APeekLeavesDamagedEntriesAndStampsAlone) {
  const auto two_hours_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
  write_bytes(path_, serialize(entry_));
  fs::last_write_time(path_, two_hours_ago);
  Store store(options_);
  EXPECT_TRUE(store.peek(entry_.identity, entry_.toolchain));
  EXPECT_EQ(fs::last_write_time(path_), two_hours_ago);
  write_bytes(path_, {1, 2, 3});
  EXPECT_FALSE(store.peek(entry_.identity, entry_.toolchain));
  EXPECT_EQ(read_bytes(path_).size(), 3U);
}

TEST_F(CacheForeign, AnotherVersionIsACleanMissAndStays) {
  std::vector<std::uint8_t> bytes = serialize(entry_);
  for (const std::uint8_t version : {std::uint8_t{0}, std::uint8_t{2}, std::uint8_t{255}}) {
    bytes[8] = version;
    write_bytes(path_, bytes);
    Store store(options_);
    EXPECT_FALSE(store.lookup(entry_.identity, entry_.toolchain));
    EXPECT_EQ(read_bytes(path_), bytes);
  }
  EXPECT_TRUE(log_.warnings().empty());
}

TEST_F(CacheForeign, ARejectedHitIsSetAsideUnlessItWasReplaced) {
  Store store(options_);
  ASSERT_TRUE(store.publish(entry_));
  const auto hit = store.lookup(entry_.identity, entry_.toolchain);
  ASSERT_TRUE(hit);
  ASSERT_TRUE(store.publish(make_entry(0, 1)));
  store.reject(entry_.identity, *hit, "its ELF is for sm_80");
  EXPECT_TRUE(fs::exists(path_));
  ASSERT_EQ(log_.warnings().size(), 1U);
  EXPECT_NE(log_.warnings()[0].find("its ELF is for sm_80"), std::string::npos);
  ASSERT_TRUE(store.publish(entry_));
  store.reject(entry_.identity, *hit, "its ELF is for sm_80");
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_EQ(log_.warnings().size(), 1U);
}

// --- a real full disk, a real read-only filesystem, a user without rights ---

// Runs the scenario and returns "" if there was one warning and no publish.
std::string uncached_with_one_warning(const std::string& root) {
  const Outcome outcome = compile_one(root);
  if (outcome.published) return "published";
  if (!outcome.right_or_missed) return "wrong kernel";
  if (outcome.warnings.size() != 1) {
    return "warnings: " + ::testing::PrintToString(outcome.warnings);
  }
  return "";
}

TEST(CacheDisk, Full) {
  const TempDir dir;
  const std::string report = Child([&]() -> std::string {
                               if (auto no = mount_tmpfs(dir / "m", 0, "size=8k"); !no.empty()) {
                                 return no;
                               }
                               write_bytes(dir / "m/filler", std::vector<std::uint8_t>(8192, 1));
                               auto held = uncached_with_one_warning(dir / "m/root");
                               const auto left = files_ending(dir / "m/root", ".tmp");
                               return left.empty() ? held : "left " + left[0];
                             }).wait();
  if (report == "no right to mount") GTEST_SKIP() << report;
  EXPECT_EQ(report, "");
}

TEST(CacheDisk, ReadOnlyFilesystem) {
  const TempDir dir;
  const std::string report =
      Child([&]() -> std::string {
        if (auto no = mount_tmpfs(dir / "m", 0, ""); !no.empty()) return no;
        StoreOptions options;
        options.writable_root = dir / "m/root";
        if (!Store(options).publish(make_entry(7))) return "setup failed";
        if (::mount("tmpfs", (dir / "m").c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
          return "no right to mount";
        }
        const Entry there = make_entry(7);
        if (!Store(options).lookup(there.identity, there.toolchain)) {
          return "no lookup";
        }
        return uncached_with_one_warning(dir / "m/root");
      }).wait();
  if (report == "no right to mount") GTEST_SKIP() << report;
  EXPECT_EQ(report, "");
}

TEST(CacheRights, ARootThatMayNotBeCreated) {
  const TempDir dir;
  fs::create_directory(dir / "locked");
  fs::permissions(dir / "locked", fs::perms(0555));
  EXPECT_EQ(without_rights([&] { return uncached_with_one_warning(dir / "locked/root"); }), "");
}

TEST(CacheRights, ARootThatMayNotBeWrittenIsStillRead) {
  const TempDir dir;
  StoreOptions options;
  options.writable_root = dir / "root";
  const Entry there = make_entry(7);
  ASSERT_TRUE(Store(options).publish(there));
  for (const auto& item : fs::recursive_directory_iterator(dir / "root")) {
    fs::permissions(item.path(), fs::perms(item.is_directory() ? 0555 : 0444));
  }
  fs::permissions(dir / "root", fs::perms(0555));
  EXPECT_EQ(without_rights([&]() -> std::string {
              if (!Store(options).lookup(there.identity, there.toolchain)) return "no lookup";
              return uncached_with_one_warning(dir / "root");
            }),
            "");
}

TEST(CacheRights, ARootThatMayNotBeEntered) {
  const TempDir dir;
  fs::create_directory(dir / "root");
  fs::permissions(dir / "root", fs::perms(0000));
  EXPECT_EQ(without_rights([&] { return uncached_with_one_warning(dir / "root"); }), "");
  fs::permissions(dir / "root", fs::perms(0700));
}

TEST(CacheRights, AnEntryThatMayNotBeRead) {
  const TempDir dir;
  const Entry entry = make_entry();
  write_bytes(path_in(dir / "root", entry), serialize(entry));
  fs::permissions(path_in(dir / "root", entry), fs::perms(0000));
  EXPECT_EQ(without_rights([&]() -> std::string {
              LogRecorder log;
              StoreOptions options;
              options.read_only_roots = {dir / "root"};
              options.log = log.callback();
              Store store(options);
              if (store.lookup(entry.identity, entry.toolchain)) return "read";
              if (store.lookup(entry.identity, std::nullopt)) return "read";
              return log.warnings().size() == 1 ? "" : "not one warning";
            }),
            "");
}

}  // namespace
}  // namespace octile::cache
