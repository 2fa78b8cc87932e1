// `octile compile` and prepare on a system that refuses memory or threads: each run ends with a
// status. A run is a child of fork, so that a crash or a hang is its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "tests/process/faults.h"
#include "tests/process/sanitized.h"
#include "tests/support/api_handles.h"
#include "tests/support/coverage.h"
#include "tools/command.h"
#include "tools/common/out_of_memory.h"

namespace octile::test {
namespace {

constexpr int kRefusedNothing = 77;

// Runs the command as its main() does. Returns its exit status.
int compile_command() {
  tools::end_if_memory_ends();
  try {
    const auto command_line = tools::new_command_line("", "");
    const tools::Command command = tools::add_compile(*command_line);
    const std::array words{"octile",   "compile",  "--json", "--problem", kQuantizeText.c_str(),
                           "--tokens", "1,64,4096"};
    if (!tools::parse(*command_line, static_cast<int>(words.size()), words.data())) return 1;
    const Result<int> status = command.run();
    return status ? *status : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

enum class Disk { kCached, kNone };

// Prepares a plan for a named device and waits for it. Returns 0, 1 for a status that tells of
// refusals, else more.
int prepare_plan(Disk disk) {
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.compile_threads = 2;
  options.disable_cache = disk == Disk::kNone ? 1 : 0;
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  // The program that compiles has the host's bounds: it may be unable to load NVRTC, or to compile.
  const auto allowed = [](octile_status status) {
    return status == OCTILE_OK || status == OCTILE_OUT_OF_MEMORY || status == OCTILE_NO_COMPILER ||
           status == OCTILE_COMPILE_FAILED;
  };
  octile_status worst = octile_library_create(&options, &library);
  if (worst == OCTILE_OK) worst = octile_plan_create(library, "h200", kQuantizeText.c_str(), &plan);
  if (worst == OCTILE_OK) worst = octile_plan_prepare(plan, 1, 64, OCTILE_PREPARE_DEFAULT);
  if (worst == OCTILE_OK) worst = octile_plan_prepare(plan, 1, 4096, OCTILE_PREPARE_ASYNC);
  if (plan != nullptr && allowed(worst)) {
    const octile_status waited = octile_plan_wait(plan);
    if (worst == OCTILE_OK) worst = waited;
  }
  if (octile_plan_destroy(plan) != OCTILE_OK || octile_library_destroy(library) != OCTILE_OK)
    return 2;
  return worst == OCTILE_OK ? 0 : allowed(worst) ? 1 : 10 + static_cast<int>(worst);
}

class Refusals : public ::testing::Test {
 protected:
  void SetUp() override {
    OCTILE_SKIP_THREADS_IN_A_FORKED_CHILD();
    ::setenv("OCTILE_CACHE_DIR", cache_.path().c_str(), 1);
  }
  void TearDown() override { ::unsetenv("OCTILE_CACHE_DIR"); }

  // Returns what wait() says of a child that runs `work`, silently. A child that hangs is ended by
  // SIGALRM.
  int status_of(const std::function<int()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      ::dup2(null, STDOUT_FILENO);
      ::dup2(null, STDERR_FILENO);
      ::_exit(work());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }

  // Returns true if the n-th request was refused in a run that ended with a status.
  bool refuse(Refuse what, std::int64_t nth, Extent extent, const std::function<int()>& work) {
    const int status = status_of([&] {
      const Refusal refusal(what, nth, extent);
      const int exit_status = work();
      return exit_status == 0 && refusal.refused() == 0 ? kRefusedNothing : exit_status;
    });
    const bool ended =
        WIFEXITED(status) && (WEXITSTATUS(status) <= 1 || WEXITSTATUS(status) == kRefusedNothing);
    EXPECT_TRUE(ended) << "request " << nth << ": "
                       << (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                               : "exit " + std::to_string(WEXITSTATUS(status)));
    return ended && WEXITSTATUS(status) != kRefusedNothing;
  }

  // Refuses the first requests one by one, then ever sparser ones; of all cases eight times as
  // many one by one.
  int sweep(Refuse what, Extent extent, const std::function<int()>& work) {
    int refused = 0;
    for (std::int64_t nth = 1; refuse(what, nth, extent, work); ++refused)
      nth += 1 + nth / (tests::sweeps_densely() ? 128 : 16);
    return refused;
  }
  // Refuses one of the first threads, or all from it on, each time with an empty cache.
  void succeeds_with_fewer_threads(const std::function<int()>& work) {
    for (const Extent extent : {Extent::kOnce, Extent::kOn})
      for (std::int64_t nth = 1; nth <= 3; ++nth) {
        const TempFolder cold;
        ::setenv("OCTILE_CACHE_DIR", cold.path().c_str(), 1);
        EXPECT_EQ(status_of([&] {
                    const Refusal refusal(Refuse::kThreads, nth, extent);
                    return work();
                  }),
                  0)
            << nth;
      }
  }

  TempFolder cache_;
};

TEST_F(Refusals, OfMemoryEndCompileWithAStatus) {
  ASSERT_EQ(status_of(compile_command), 0);
  EXPECT_GT(sweep(Refuse::kMemory, Extent::kOnce, compile_command), 50);
  EXPECT_GT(sweep(Refuse::kMemory, Extent::kOn, compile_command), 50);
  EXPECT_EQ(status_of(compile_command), 0) << "and leave a cache that works";
}

TEST_F(Refusals, OfThreadsCompileLeavesToTheOthers) {
  succeeds_with_fewer_threads(compile_command);
}

TEST_F(Refusals, OfThreadsPrepareLeavesToTheOthers) {
  succeeds_with_fewer_threads([] { return prepare_plan(Disk::kCached); });
}

// There is no cache on disk, so that every run starts octile-compiler and compiles.
TEST_F(Refusals, OfMemoryEndPrepareWithAStatus) {
  const auto prepare = [] { return prepare_plan(Disk::kNone); };
  EXPECT_GT(sweep(Refuse::kMemory, Extent::kOnce, prepare), 40);
  EXPECT_GT(sweep(Refuse::kMemory, Extent::kOn, prepare), 40);
}

// mmap as the C library calls it, also for thread stacks: the address space ends ever later.
TEST_F(Refusals, OfAddressSpaceEndPrepareWithAStatus) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer maps more than any bound";
#endif
  ASSERT_EQ(status_of([] { return prepare_plan(Disk::kCached); }), 0);
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  statm >> pages;
  const std::int64_t now = pages * ::sysconf(_SC_PAGESIZE);
  int refused = 0;
  constexpr std::int64_t kStep = std::int64_t{64} << 10;
  for (std::int64_t more = 0; more < (std::int64_t{512} << 20);
       more += tests::sweeps_densely() ? kStep : kStep + more / 8) {
    const int status = status_of([&] {
      const rlimit limit{static_cast<rlim_t>(now + more), static_cast<rlim_t>(now + more)};
      ::setrlimit(RLIMIT_AS, &limit);
      return prepare_plan(Disk::kCached);
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 1) << more << " bytes: " << status;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) ++refused;
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace octile::test
