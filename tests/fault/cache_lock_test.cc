// The lock of a key between threads and processes is exclusive and bounded in time, and disappears
// with its owner.
#include <fcntl.h>

#include <atomic>
#include <thread>

#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Locks files but not folders.
class NoFolderLocks : public FileOps {
 public:
  int try_lock(int fd) override {
    struct stat status = {};
    if (stat_fd(fd, status) < 0 || S_ISDIR(status.st_mode)) return -EBADF;
    return FileOps::try_lock(fd);
  }
};

class CacheLock : public ::testing::Test {
 protected:
  StoreOptions options(milliseconds timeout) {
    StoreOptions options;
    options.writable_root = dir_ / "root";
    options.lock_timeout = timeout;
    options.log = log_.callback();
    return options;
  }
  // Returns a child that holds the lock of entry 0 until it is killed.
  Child holder() {
    Child child([this]() -> std::string {
      Store store(options(milliseconds(1000)));
      const auto lock = store.lock(make_entry().identity, make_entry().toolchain);
      if (!lock.held()) return "not locked";
      write_bytes(dir_ / "ready", {});
      for (;;) ::pause();
    });
    while (!fs::exists(dir_ / "ready")) std::this_thread::sleep_for(milliseconds(1));
    return child;
  }
  bool acquired(milliseconds timeout) {
    return Store(options(timeout)).lock(make_entry().identity, make_entry().toolchain).held();
  }

  TempDir dir_;
  LogRecorder log_;
};

TEST_F(CacheLock, AWaiterTakesOverAfterTheTimeout) {
  const Child child = holder();
  const auto begin = Clock::now();
  EXPECT_TRUE(acquired(milliseconds(100)));
  EXPECT_GE(Clock::now() - begin, milliseconds(100));
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  EXPECT_TRUE(log_.warnings().empty());
}

TEST_F(CacheLock, WithoutATimeoutNobodyWaits) {
  const Child child = holder();
  EXPECT_FALSE(acquired(milliseconds(0)));
  ASSERT_EQ(log_.warnings().size(), 1U);
  EXPECT_NE(log_.warnings()[0].find("compiling it here too"), std::string::npos);
}

// On NFS a folder may not be lockable. A late waiter could then remove the lock of the one that
// just took over, so everybody continues without a lock.
TEST_F(CacheLock, WhatCannotBeTakenOverIsDoneWithout) {
  const Child child = holder();
  StoreOptions nfs = options(milliseconds(20));
  nfs.file_ops = std::make_shared<NoFolderLocks>();
  const auto lock = Store(nfs).lock(make_entry().identity, make_entry().toolchain);
  EXPECT_FALSE(lock.held());
  EXPECT_EQ(log_.warnings().size(), 1U);
}

// The owner that counted as stopped returns. The lock, which is now another's, stays.
TEST_F(CacheLock, AnOwnerThatReturnsRemovesNobodysLock) {
  Store store(options(milliseconds(20)));
  const Entry entry = make_entry();
  auto slow = store.lock(entry.identity, entry.toolchain);
  const auto taken = store.lock(entry.identity, entry.toolchain);
  ASSERT_TRUE(taken.held());
  slow = Store::Lock();
  EXPECT_FALSE(acquired(milliseconds(0)));
  EXPECT_EQ(files_ending(dir_ / "root", ".lock").size(), 1U);
}

TEST_F(CacheLock, OtherKeysAreFree) {
  const Child child = holder();
  Store store(options(milliseconds(0)));
  EXPECT_TRUE(store.lock(make_entry(1).identity, make_entry(1).toolchain).held());
  EXPECT_TRUE(store.lock(make_entry().identity, Toolchain{"nvrtc 12.8", "x"}).held());
}

TEST_F(CacheLock, TheDeathOfTheOwnerReleasesIt) {
  {
    const Child child = holder();
    EXPECT_FALSE(acquired(milliseconds(0)));
  }  // killed; the lock file stays, unlocked
  EXPECT_EQ(files_ending(dir_ / "root", ".lock").size(), 1U);
  EXPECT_TRUE(acquired(milliseconds(0)));
  EXPECT_TRUE(files_ending(dir_ / "root", ".lock").empty());
}

TEST_F(CacheLock, AWaiterGetsItWhenTheOwnerDies) {
  Child child = holder();
  std::thread killer([pid = child.pid()] {
    std::this_thread::sleep_for(milliseconds(50));
    ::kill(pid, SIGKILL);
  });
  EXPECT_TRUE(acquired(milliseconds(20'000)));
  killer.join();
  EXPECT_EQ(child.wait(), "signal 9");
}

TEST_F(CacheLock, AProgramStartedByTheOwnerDoesNotInheritIt) {
  Store store(options(milliseconds(0)));
  pid_t program = -1;
  {
    const auto lock = store.lock(make_entry().identity, make_entry().toolchain);
    ASSERT_TRUE(lock.held());
    program = ::fork();
    if (program == 0) {
      ::execlp("sleep", "sleep", "60", nullptr);
      ::_exit(1);
    }
    // Until it executes another program, the child shares the descriptors.
    const std::string comm = "/proc/" + std::to_string(program) + "/comm";
    for (std::string name; name != "sleep"; std::ifstream(comm) >> name) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  // The file was removed with the release. Locking the name through a hard link would prove
  // nothing, so the program's descriptors are inspected. The dynamic linker still opens and
  // closes libraries: a descriptor that is closed by now, and so has no link, holds no lock.
  std::error_code closed;
  for (const auto& fd : fs::directory_iterator("/proc/" + std::to_string(program) + "/fd")) {
    const std::string file = fs::read_symlink(fd.path(), closed).string();
    EXPECT_EQ(file.find(dir_ / "root"), std::string::npos) << file;
  }
  ::kill(program, SIGKILL);
  ::waitpid(program, nullptr, 0);
}

TEST_F(CacheLock, ThreadsExcludeEachOther) {
  Store store(options(milliseconds(60'000)));
  // The counter is atomic, because ThreadSanitizer does not know that flock() orders threads.
  std::atomic<int> inside = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        const auto lock = store.lock(make_entry().identity, make_entry().toolchain);
        ASSERT_TRUE(lock.held());
        EXPECT_EQ(++inside, 1);
        std::this_thread::sleep_for(milliseconds(1));
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr int kKernels = 8;

// Does what the engine does on a miss. Each "compile" adds one byte to the kernel's tally.
std::string compile_kernel(Store& store, const std::string& tally, int kernel) {
  const Entry entry = make_entry(kernel);
  if (store.lookup(entry.identity, entry.toolchain)) return "";
  const auto lock = store.lock(entry.identity, entry.toolchain);
  if (!lock.held()) return "not locked";
  if (store.lookup(entry.identity, entry.toolchain)) return "";
  const int fd =
      ::open((tally + std::to_string(kernel)).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (fd < 0 || ::write(fd, "x", 1) != 1) return "no tally";
  ::close(fd);
  std::this_thread::sleep_for(milliseconds(20));
  return store.publish(entry) ? "" : "not published";
}

std::string compile_kernels(const StoreOptions& options, const std::string& tally) {
  Store store(options);
  std::string report;
  for (int kernel = 0; kernel < kKernels; ++kernel) report += compile_kernel(store, tally, kernel);
  return report;
}

class CompileOnce : public CacheLock {
 protected:
  static constexpr int kProcesses = 64;

  // Runs all processes at once from an empty cache, each with as many threads.
  void run_processes(int threads, milliseconds timeout) {
    std::vector<Child> children;
    for (int i = 0; i < kProcesses; ++i) {
      children.emplace_back([this, threads, timeout]() -> std::string {
        if (threads == 1) return compile_kernels(options(timeout), tally_);
        std::vector<std::string> reports(static_cast<std::size_t>(threads));
        std::vector<std::thread> workers;
        for (std::string& report : reports) {
          workers.emplace_back([&] { report = compile_kernels(options(timeout), tally_); });
        }
        for (std::thread& worker : workers) worker.join();
        std::string all;
        for (const std::string& report : reports) all += report;
        return all;
      });
    }
    for (Child& child : children) EXPECT_EQ(child.wait(), "");
  }
  std::uintmax_t compiles(int kernel) { return fs::file_size(tally_ + std::to_string(kernel)); }

  std::string tally_ = dir_ / "tally";
};

TEST_F(CompileOnce, SixtyFourProcesses) {
  run_processes(1, milliseconds(60'000));
  for (int kernel = 0; kernel < kKernels; ++kernel) EXPECT_EQ(compiles(kernel), 1U) << kernel;
  EXPECT_TRUE(files_ending(dir_ / "root", ".lock").empty());
}

TEST_F(CompileOnce, SixtyFourProcessesOfEightThreads) {
  run_processes(8, milliseconds(60'000));
  for (int kernel = 0; kernel < kKernels; ++kernel) EXPECT_EQ(compiles(kernel), 1U) << kernel;
}

class StoppedOwner : public CompileOnce, public ::testing::WithParamInterface<int> {};

// The owner of kernel 0 is stopped. Exactly one of its waiters compiles in its place.
TEST_P(StoppedOwner, CostsTheTimeoutAndOneCompile) {
  const Child child = holder();
  ::kill(child.pid(), SIGSTOP);
  const auto begin = Clock::now();
  run_processes(GetParam(), milliseconds(2000));
  for (int kernel = 0; kernel < kKernels; ++kernel) EXPECT_EQ(compiles(kernel), 1U) << kernel;
  EXPECT_GE(Clock::now() - begin, milliseconds(2000));
  EXPECT_LT(Clock::now() - begin, milliseconds(30'000));
}
INSTANTIATE_TEST_SUITE_P(Threads, StoppedOwner, ::testing::Values(1, 8),
                         ::testing::PrintToStringParamName());

// Network filesystems may have no locks. The call then continues without one, with one warning.
TEST_F(CacheLock, AFilesystemWithoutLocksIsUsedWithoutThem) {
  for (const int code : {ENOLCK, EOPNOTSUPP, ENOSYS}) {
    LogRecorder log;
    StoreOptions nfs = options(milliseconds(20'000));
    nfs.log = log.callback();
    nfs.file_ops = std::make_shared<HookedOps>(
        [code](Op op) { return op == Op::kLock ? std::optional(code) : std::nullopt; });
    Store store(nfs);
    for (int kernel = 0; kernel < 3; ++kernel) {
      const Entry entry = make_entry(kernel);
      EXPECT_FALSE(store.lock(entry.identity, entry.toolchain).held());
      EXPECT_TRUE(store.publish(entry));
      EXPECT_TRUE(store.lookup(entry.identity, entry.toolchain));
    }
    EXPECT_EQ(log.warnings().size(), 1U);
  }
}

}  // namespace
}  // namespace octile::cache
