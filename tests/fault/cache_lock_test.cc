// The per-key lock between threads and processes: exclusive, bounded in time, gone with its owner.
#include <fcntl.h>

#include <atomic>
#include <thread>

#include "tests/support/cache_testing.h"

namespace octile::cache {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class CacheLock : public ::testing::Test {
 protected:
  StoreOptions options(milliseconds timeout) {
    StoreOptions options;
    options.writable_root = dir_ / "root";
    options.lock_timeout = timeout;
    options.log = log_.callback();
    return options;
  }
  // A child that holds the lock of entry 0 until it is killed; returns once it holds it.
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

TEST_F(CacheLock, AnotherProcessWaitsNoLongerThanTheTimeout) {
  const Child child = holder();
  const auto begin = Clock::now();
  EXPECT_FALSE(acquired(milliseconds(100)));
  EXPECT_GE(Clock::now() - begin, milliseconds(100));
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  ASSERT_EQ(log_.warnings().size(), 1U);
  EXPECT_NE(log_.warnings()[0].find("another process has been compiling"), std::string::npos);
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
  }  // killed; the lock file stays, without a lock
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

TEST_F(CacheLock, AStoppedOwnerOnlyCostsTheTimeout) {
  const Child child = holder();
  ::kill(child.pid(), SIGSTOP);
  EXPECT_FALSE(acquired(milliseconds(50)));
  Store store(options(milliseconds(50)));
  EXPECT_TRUE(store.publish(make_entry()));  // compiled and published without the lock
  EXPECT_TRUE(store.lookup(make_entry().identity, make_entry().toolchain));
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
    // Until it has become another program it shares the descriptors.
    const std::string comm = "/proc/" + std::to_string(program) + "/comm";
    for (std::string name; name != "sleep"; std::ifstream(comm) >> name) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  // The file was removed with the release: lock the name through a hard link would prove nothing,
  // so look into the program itself.
  for (const auto& fd : fs::directory_iterator("/proc/" + std::to_string(program) + "/fd")) {
    EXPECT_EQ(fs::read_symlink(fd.path()).string().find(dir_ / "root"), std::string::npos);
  }
  ::kill(program, SIGKILL);
  ::waitpid(program, nullptr, 0);
}

TEST_F(CacheLock, ThreadsExcludeEachOther) {
  Store store(options(milliseconds(60'000)));
  std::atomic<int> inside = 0;  // ThreadSanitizer does not know that flock() orders threads
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

// What the engine does on a miss. Each "compile" leaves one byte in the kernel's tally.
std::string compile_kernels(const StoreOptions& options, const std::string& tally, int kernels) {
  Store store(options);
  for (int kernel = 0; kernel < kernels; ++kernel) {
    const Entry entry = make_entry(kernel);
    if (store.lookup(entry.identity, entry.toolchain)) continue;
    const auto lock = store.lock(entry.identity, entry.toolchain);
    if (!lock.held()) return "not locked";
    if (store.lookup(entry.identity, entry.toolchain)) continue;
    const int fd =
        ::open((tally + std::to_string(kernel)).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || ::write(fd, "x", 1) != 1) return "no tally";
    ::close(fd);
    std::this_thread::sleep_for(milliseconds(20));
    if (!store.publish(entry)) return "not published";
  }
  return "";
}

TEST_F(CacheLock, ManyProcessesCompileAKernelOnce) {
  constexpr int kProcesses = 16;
  constexpr int kKernels = 4;
  std::vector<Child> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.emplace_back([this] {
      return compile_kernels(options(milliseconds(60'000)), dir_ / "tally", kKernels);
    });
  }
  for (Child& child : children) EXPECT_EQ(child.wait(), "");
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    EXPECT_EQ(fs::file_size((dir_ / "tally") + std::to_string(kernel)), 1U) << kernel;
  }
  EXPECT_TRUE(files_ending(dir_ / "root", ".lock").empty());
}

// Network filesystems may know no locks: the call goes on without one, with one warning.
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
