// Every system call of the store fails in every way in which a disk or a file server fails. No call
// throws or gives a wrong kernel, one warning names the problem, and nothing is left behind.
#include <csignal>

#include "tests/support/cache_testing.h"
#include "tests/support/file_size_limit.h"

namespace octile::cache {
namespace {

using namespace testing;

constexpr Op kAllOps[] = {Op::kOpen, Op::kRead,   Op::kWrite,  Op::kFsync, Op::kClose, Op::kStat,
                          Op::kList, Op::kRename, Op::kUnlink, Op::kTouch, Op::kMkdir, Op::kLock};

bool healthy_hit(const std::string& root) {
  StoreOptions options;
  options.writable_root = root;
  const Entry entry = make_entry();
  const auto hit = Store(options).lookup(entry.identity, entry.toolchain);
  return hit && hit->entry == entry;
}

std::shared_ptr<FileOps> failing_always(Op op, int code) {
  return std::make_shared<HookedOps>(
      [=](Op now) { return now == op ? std::optional(code) : std::nullopt; });
}

TEST(CacheFault, AnOperationThatAlwaysFailsGivesOneWarning) {
  for (const Op op : kAllOps) {
    for (const int code : {ENOSPC, EIO, ESTALE, EINTR, EACCES, EROFS, EMFILE, EDQUOT, ENOLCK}) {
      const TempDir dir;
      const Outcome outcome = compile_one(dir / "root", failing_always(op, code));
      SCOPED_TRACE(std::string(name_of(op)) + " fails with " + std::to_string(code));
      EXPECT_TRUE(outcome.right_or_missed);
      // A failed removal or stamp is ignored; every other failure is reported once.
      EXPECT_EQ(outcome.warnings.size(), op == Op::kUnlink || op == Op::kTouch ? 0U : 1U)
          << ::testing::PrintToString(outcome.warnings);
      EXPECT_TRUE(!outcome.published || healthy_hit(dir / "root"));
      EXPECT_TRUE(op == Op::kUnlink || files_ending(dir / "root", ".tmp").empty());
    }
  }
}

// Only the nth call of its kind fails, for every n that occurs.
TEST(CacheFault, ASingleFailureAnywhereIsSurvived) {
  for (const Op op : kAllOps) {
    for (const int code : {ENOSPC, EIO, ESTALE}) {
      for (int nth = 0;; ++nth) {
        const TempDir dir;
        int count = 0;
        const auto ops = std::make_shared<HookedOps>(
            [&](Op now) {
              return now == op && count++ == nth ? std::optional(code) : std::nullopt;
            },
            /*chunk=*/600);
        const Outcome outcome = compile_one(dir / "root", ops);
        if (count <= nth) break;
        SCOPED_TRACE(std::string(name_of(op)) + " " + std::to_string(nth) + " fails with " +
                     std::to_string(code));
        EXPECT_TRUE(outcome.right_or_missed);
        EXPECT_LE(outcome.warnings.size(), 1U) << ::testing::PrintToString(outcome.warnings);
        EXPECT_TRUE(outcome.published || outcome.warnings.size() == 1);
        EXPECT_TRUE(!outcome.published || healthy_hit(dir / "root"));
        EXPECT_TRUE(op == Op::kUnlink || files_ending(dir / "root", ".tmp").empty());
        ASSERT_LT(nth, 1000);
      }
    }
  }
}

TEST(CacheFault, InterruptedCallsAreRepeated) {
  const TempDir dir;
  int count =
      0;  // two of three calls are interrupted; close is exempt, because it is never repeated
  const auto ops = std::make_shared<HookedOps>(
      [&](Op op) {
        const bool interrupt = op != Op::kClose && count++ % 3 != 2;
        return interrupt ? std::optional(EINTR) : std::nullopt;
      },
      /*chunk=*/100);
  const Outcome outcome = compile_one(dir / "root", ops);
  EXPECT_TRUE(outcome.published);
  EXPECT_TRUE(outcome.warnings.empty()) << ::testing::PrintToString(outcome.warnings);
  EXPECT_TRUE(healthy_hit(dir / "root"));
}

TEST(CacheFault, ShortReadsAndWritesAreContinued) {
  const TempDir dir;
  const auto ops = std::make_shared<HookedOps>([](Op) { return std::nullopt; }, /*chunk=*/7);
  const Outcome outcome = compile_one(dir / "root", ops);
  EXPECT_TRUE(outcome.published);
  EXPECT_TRUE(outcome.warnings.empty());
  EXPECT_TRUE(healthy_hit(dir / "root"));
}

// Every second read says that the file has ended, as of a file that is cut meanwhile.
class EndingEarly : public FileOps {
 public:
  ssize_t read(int fd, std::span<std::uint8_t> into) override {
    constexpr std::size_t kMost = 100;
    const bool ends = std::exchange(ends_next_, !ends_next_);
    return ends ? 0 : FileOps::read(fd, into.first(std::min(into.size(), kMost)));
  }

 private:
  bool ends_next_ = false;
};

TEST(CacheFault, AnEntryThatCannotBeReadIsNotTakenForADamagedOne) {
  std::vector<std::shared_ptr<FileOps>> failing = {std::make_shared<EndingEarly>()};
  for (const int code : {EIO, ESTALE, EINTR, ENOMEM, EACCES, EMFILE})
    failing.push_back(failing_always(Op::kRead, code));
  for (const auto& ops : failing) {
    const TempDir dir;
    const Entry entry = make_entry();
    ASSERT_TRUE(publish_in(dir / "root", entry));
    LogRecorder log;
    StoreOptions options;
    options.writable_root = dir / "root";
    options.log = log.callback();
    const auto listed = Store(options).list();
    options.file_ops = ops;
    Store store(options);
    EXPECT_FALSE(store.lookup(entry.identity, entry.toolchain));
    EXPECT_FALSE(store.lookup(entry.identity, std::nullopt));
    ASSERT_EQ(log.warnings().size(), 1U);
    EXPECT_NE(log.warnings()[0].find("cannot read"), std::string::npos) << log.warnings()[0];
    store.reject(entry.identity, {entry, path_in(dir / "root", entry)}, "its ELF is for sm_80");
    EXPECT_TRUE(healthy_hit(dir / "root"));

    ASSERT_EQ(listed.size(), 1U);
    const auto read = store.read(listed[0]);
    ASSERT_FALSE(read);
    EXPECT_TRUE(read.error().unread) << read.error().sentence;
    const auto heads = store.list();
    ASSERT_EQ(heads.size(), 1U);
    ASSERT_FALSE(heads[0].head);
    EXPECT_TRUE(heads[0].head.error().unread) << heads[0].head.error().sentence;
  }
}

// An entry that is evicted between a listing and its read was not damaged.
TEST(CacheFault, AnEntryThatIsGoneIsNotTakenForADamagedOne) {
  const TempDir dir;
  ASSERT_TRUE(publish_in(dir / "root", make_entry()));
  StoreOptions options;
  options.writable_root = dir / "root";
  Store store(options);
  const auto listed = store.list();
  ASSERT_EQ(listed.size(), 1U);
  fs::remove(listed[0].path);
  const auto read = store.read(listed[0]);
  ASSERT_FALSE(read);
  EXPECT_TRUE(read.error().unread) << read.error().sentence;
}

// Others repair a damaged entry while one process sets it aside: after it read the entry, and
// between its last look at the file and the rename.
TEST(CacheFault, ARepairedEntryIsNotSetAside) {
  const TempDir dir;
  const Entry entry = make_entry();
  const std::string path = path_in(dir / "root", entry);
  const auto rewrite = [&] {  // the same file
    write_bytes(path, serialize(entry));
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  };
  const auto publish = [&] { EXPECT_TRUE(publish_in(dir / "root", entry)); };
  struct Case {
    Op before;
    std::function<void()> repair;
  };
  bool read = false;
  for (const auto& [before, repair] : {Case{Op::kStat, rewrite}, Case{Op::kStat, publish},
                                       Case{Op::kList, publish}, Case{Op::kRename, publish}}) {
    SCOPED_TRACE(name_of(before));
    write_bytes(path, {1, 2, 3});
    read = false;
    bool repaired = false;
    StoreOptions options;
    options.writable_root = dir / "root";
    options.file_ops = std::make_shared<HookedOps>([&, before = before](Op now) {
      if (read && now == before && !std::exchange(repaired, true)) repair();
      read = read || now == Op::kRead;
      return std::nullopt;
    });
    EXPECT_FALSE(Store(options).lookup(entry.identity, entry.toolchain));
    EXPECT_TRUE(repaired);
    EXPECT_TRUE(healthy_hit(dir / "root"));
    EXPECT_TRUE(files_ending(dir / "root", ".damaged").empty());
  }
}

std::atomic<int> size_signals = 0;
bool size_signal_is_pending() {
  sigset_t pending{};
  sigpending(&pending);
  return sigismember(&pending, SIGXFSZ) == 1;
}

// The kernel sends SIGXFSZ with the error, which by default ends the process.
TEST(CacheFault, ALimitOfAFilesSizeIsAFailureAndNoSignal) {
  const TempDir dir;
  const auto before = std::signal(SIGXFSZ, [](int) { ++size_signals; });
  Outcome outcome;
  {
    const test::FileSizeLimit limit(64);
    outcome = compile_one(dir / "root", std::make_shared<FileOps>());
  }
  EXPECT_FALSE(outcome.published);
  EXPECT_TRUE(outcome.right_or_missed);
  ASSERT_EQ(outcome.warnings.size(), 1U);
  EXPECT_NE(outcome.warnings[0].find("File too large"), std::string::npos) << outcome.warnings[0];
  EXPECT_TRUE(files_ending(dir / "root", ".tmp").empty());
  EXPECT_EQ(size_signals, 0);
  EXPECT_FALSE(size_signal_is_pending());
  (void)std::signal(SIGXFSZ, before);
}

TEST(CacheFault, ASizeSignalOfTheHostStaysPending) {
  const TempDir dir;
  size_signals = 0;
  const auto before = std::signal(SIGXFSZ, [](int) { ++size_signals; });
  sigset_t blocked{};
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGXFSZ);
  sigset_t saved{};
  pthread_sigmask(SIG_BLOCK, &blocked, &saved);
  (void)std::raise(SIGXFSZ);
  EXPECT_TRUE(publish_in(dir / "root", make_entry()));
  EXPECT_TRUE(size_signal_is_pending());
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
  EXPECT_EQ(size_signals, 1);
  (void)std::signal(SIGXFSZ, before);
}

// ESTALE and ENOENT during a publish mean that the folder was replaced. The second attempt makes a
// new one.
TEST(CacheFault, AFolderThatVanishesDuringAPublishIsMadeAgain) {
  for (const Op op : {Op::kOpen, Op::kRename}) {
    const TempDir dir;
    const Entry entry = make_entry();
    bool armed = true;
    StoreOptions options;
    options.writable_root = dir / "root";
    LogRecorder log;
    options.log = log.callback();
    // Fails at the rename, or at the creation of the temporary file. That is the eighth open: the
    // root, v1 and the folder are each tried, made and opened, and the root's folder is opened to
    // flush it.
    int opens = 0;
    options.file_ops = std::make_shared<HookedOps>([&](Op now) -> std::optional<int> {
      const bool here = op == Op::kRename ? now == op : now == op && ++opens == 8;
      if (armed && here) {
        armed = false;
        fs::remove_all(dir / "root");
      }
      return std::nullopt;
    });
    EXPECT_TRUE(Store(options).publish(entry)) << name_of(op);
    EXPECT_FALSE(armed);
    EXPECT_TRUE(log.warnings().empty());
    EXPECT_TRUE(healthy_hit(dir / "root"));
  }
}

TEST(CacheFault, ARootThatVanishesMidRunIsAMissAndComesBack) {
  const TempDir dir;
  StoreOptions options;
  options.writable_root = dir / "a/b/root";
  LogRecorder log;
  options.log = log.callback();
  Store store(options);
  const Entry entry = make_entry();
  EXPECT_TRUE(store.publish(entry));
  const auto lock = store.lock(entry.identity, entry.toolchain);
  fs::remove_all(dir / "a");
  EXPECT_FALSE(store.lookup(entry.identity, entry.toolchain));
  EXPECT_TRUE(store.list().empty());
  EXPECT_TRUE(store.publish(entry));
  EXPECT_TRUE(store.lookup(entry.identity, entry.toolchain));
  EXPECT_TRUE(log.warnings().empty());
}

// kill -9 before every system call of a publish that replaces nothing, and of one that replaces an
// entry. Afterwards a lookup gives a right hit or a miss, and the next publish succeeds.
TEST(CacheFault, KilledAtEveryCallOfAPublish) {
  for (const bool replacing : {false, true}) {
    bool finished = false;
    for (int fatal = 0; !finished; ++fatal) {
      ASSERT_LT(fatal, 1000);
      const TempDir dir;
      StoreOptions options;
      options.writable_root = dir / "root";
      const Entry before = make_entry(0, 1);
      const Entry after = make_entry(0, 2);
      ASSERT_TRUE(!replacing || Store(options).publish(before));
      Child child([&] {
        int count = 0;
        StoreOptions fragile = options;
        fragile.file_ops = std::make_shared<HookedOps>(
            [&](Op) {
              if (count++ == fatal) ::kill(::getpid(), SIGKILL);
              return std::nullopt;
            },
            /*chunk=*/200);
        return Store(fragile).publish(after) ? "" : "publish failed";
      });
      finished = child.wait().empty();

      SCOPED_TRACE("killed ahead of call " + std::to_string(fatal));
      LogRecorder log;
      options.log = log.callback();
      Store store(options);
      const auto hit = store.lookup(after.identity, after.toolchain);
      EXPECT_TRUE(!hit || hit->entry == after || (replacing && hit->entry == before));
      EXPECT_TRUE(hit || !(replacing || finished));
      EXPECT_TRUE(log.warnings().empty()) << log.warnings()[0];
      EXPECT_TRUE(store.publish(after));
      const auto repaired = store.lookup(after.identity, after.toolchain);
      ASSERT_TRUE(repaired);
      EXPECT_EQ(repaired->entry, after);
    }
  }
}

// Each of 200 damaged files on disk is a miss with one warning, and publishing again replaces it.
TEST(CacheFault, DamagedEntriesAreMissesAndAreReplaced) {
  const TempDir dir;
  LogRecorder log;
  StoreOptions options;
  options.writable_root = dir / "root";
  options.log = log.callback();
  options.file_ops = std::make_shared<HookedOps>([](Op) { return std::nullopt; });
  Store store(options);
  for (int i = 0; i < 200; ++i) {
    const Entry entry = make_entry(i);
    std::vector<std::uint8_t> bytes = serialize(entry);
    const std::size_t at = static_cast<std::size_t>(i) * 7919 % bytes.size();
    if (i % 3 == 0) bytes.resize(at);
    if (i % 3 == 1) bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1U << (i % 8)));
    if (i % 3 == 2) bytes.insert(bytes.end(), at + 1, 0);
    write_bytes(path_in(dir / "root", entry), bytes);
    EXPECT_FALSE(store.lookup(entry.identity, entry.toolchain)) << i;
    EXPECT_FALSE(store.lookup(entry.identity, std::nullopt)) << i;
    EXPECT_EQ(log.warnings().size(), static_cast<std::size_t>(i) + 1);
    EXPECT_TRUE(store.publish(entry)) << i;
    EXPECT_TRUE(store.lookup(entry.identity, entry.toolchain)) << i;
  }
}

}  // namespace
}  // namespace octile::cache
