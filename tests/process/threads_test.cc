// A system that refuses threads: workers that run serve alone, and without any the caller does. A
// pool that queued first and then failed would leave jobs behind that point to a stack that is
// gone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/worker_pool.h"
#include "runtime/reference/parallel.h"
#include "tests/process/faults.h"
#include "tests/support/api_handles.h"

namespace octile::test {
namespace {

constexpr const char* kDevice = "h200";

TEST(RefusedThreads, TheCallerDoesAWholeRun) {
  WorkerPool pool(4);
  std::set<std::thread::id> seen;
  std::vector<int> calls(20);
  {
    const Refusal refusal(Refuse::kThreads, 1, Extent::kOn);
    pool.run(calls.size(), [&](std::size_t i) {
      seen.insert(std::this_thread::get_id());
      ++calls[i];
    });
    EXPECT_GT(refusal.refused(), 0);
  }
  EXPECT_EQ(seen, std::set{std::this_thread::get_id()});
  EXPECT_EQ(calls, std::vector<int>(20, 1));
}

TEST(RefusedThreads, TheCallerDoesAJob) {
  WorkerPool pool(4);
  std::thread::id ran_on;
  const Refusal refusal(Refuse::kThreads, 1, Extent::kOn);
  pool.submit([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(RefusedThreads, WorkersThatRunServe) {
  WorkerPool pool(4);
  std::latch begun(1), go(1);
  pool.submit([&] {
    begun.count_down();
    go.wait();
  });
  begun.wait();
  std::atomic<int> calls = 0;
  std::latch done(1);
  {
    const Refusal refusal(Refuse::kThreads, 1, Extent::kOn);
    pool.submit([&] { done.count_down(); });
    EXPECT_GT(refusal.refused(), 0);
    EXPECT_FALSE(done.try_wait()) << "the only worker is busy";
    go.count_down();
    pool.run(8, [&](std::size_t) { ++calls; });
  }
  done.wait();
  EXPECT_EQ(calls, 8);
}

TEST(RefusedThreads, AnyNumberOfThemServesARun) {
  for (int given = 1; given <= 4; ++given) {
    WorkerPool pool(4);
    std::vector<int> calls(50);
    const Refusal refusal(Refuse::kThreads, given + 1, Extent::kOn);
    pool.run(calls.size(), [&](std::size_t i) { ++calls[i]; });
    EXPECT_EQ(calls, std::vector<int>(50, 1)) << given << " threads";
  }
}

TEST(RefusedMemory, AJobRunsAtOnce) {
  WorkerPool pool(1);
  std::latch ready(1);
  pool.submit([&] { ready.count_down(); });
  ready.wait();
  bool ran = false;
  WorkerPool::Job job = [&] { ran = true; };
  const Refusal refusal(Refuse::kMemory, 1, Extent::kOn);
  pool.submit(std::move(job));
  EXPECT_TRUE(ran);
}

TEST(RefusedThreads, RunsFromSeveralThreadsDoNotWaitForEachOther) {
  WorkerPool pool(2);
  std::atomic<int> calls = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] { pool.run(100, [&](std::size_t) { ++calls; }); });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 400);
}

TEST(RefusedThreads, TheReferenceExecutorUsesThoseItHas) {
  std::vector<int> calls(1000);
  const Refusal refusal(Refuse::kThreads, 2, Extent::kOn);
  reference::parallel_for(1000, 1, 8, [&](std::int64_t begin, std::int64_t) {
    ++calls[static_cast<std::size_t>(begin)];
  });
  EXPECT_GT(refusal.refused(), 0);
  EXPECT_EQ(calls, std::vector<int>(1000, 1));
}

// Offline, every kernel of the range fails: prepare and wait say so and return.
class PrepareWithoutThreads : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(PrepareWithoutThreads, SaysWhatItWouldSay) {
  const LibraryHandle library("", true, 4);
  const PlanHandle plan = make_plan(library, kDevice, kGemmText);
  {
    const Refusal refusal(Refuse::kThreads, GetParam(), Extent::kOn);
    EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 8192, OCTILE_PREPARE_DEFAULT), OCTILE_OFFLINE);
    EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 8192, OCTILE_PREPARE_ASYNC), OCTILE_OFFLINE);
    EXPECT_EQ(octile_plan_wait(plan.get()), OCTILE_OK) << "the generic kernel had failed";
  }
  EXPECT_EQ(octile_plan_prepare(plan.get(), 1, 8192, OCTILE_PREPARE_DEFAULT), OCTILE_OFFLINE);
}
INSTANTIATE_TEST_SUITE_P(Given, PrepareWithoutThreads, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

// Returns the signals that a thread of this process blocks, a bit each.
std::uint64_t blocked_signals(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(8), nullptr, 16);
  ADD_FAILURE() << "no thread " << thread;
  return 0;
}

// The host's handlers run on the host's threads.
TEST(LibraryThreads, BlockTheHostsSignals) {
  const auto bit = [](int signal) { return std::uint64_t{1} << (signal - 1); };
  WorkerPool pool(2);
  std::latch both(3), done(3);
  std::array<pid_t, 2> threads{};
  for (pid_t& thread : threads)
    pool.submit([&] {
      thread = ::gettid();
      both.arrive_and_wait();
      done.arrive_and_wait();
    });
  both.arrive_and_wait();
  for (const pid_t thread : threads) {
    const std::uint64_t blocked = blocked_signals(thread);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM, SIGRTMIN})
      EXPECT_NE(blocked & bit(signal), 0U) << signal;
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGPROF})
      EXPECT_EQ(blocked & bit(signal), 0U) << signal;
  }
  done.arrive_and_wait();
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGINT), 0) << "the caller's mask is as it was";
}

}  // namespace
}  // namespace octile::test
