// The worker pool and single flight, without kernels.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/single_flight.h"
#include "runtime/base/worker_pool.h"

namespace octile {
namespace {

TEST(WorkerPool, RunsEveryJobOnAtMostItsThreads) {
  WorkerPool pool(2);
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  std::latch done(50);
  for (int i = 0; i < 50; ++i)
    pool.submit([&] {
      const int now = ++running;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      --running;
      done.count_down();
    });
  done.wait();
  EXPECT_LE(most, 2);
}

TEST(WorkerPool, UsesItsThreadsTogether) {
  WorkerPool pool(3);
  std::latch all_here(3);  // reached only if three jobs run at once
  std::latch done(3);
  for (int i = 0; i < 3; ++i)
    pool.submit([&] {
      all_here.arrive_and_wait();
      done.count_down();
    });
  done.wait();
}

TEST(WorkerPool, WaitsForRunningJobsAndDropsQueuedOnes) {
  std::atomic<int> finished = 0;
  std::latch started(1);
  std::latch go(1);
  std::thread release;
  {
    WorkerPool pool(1);
    pool.submit([&] {
      started.count_down();
      go.wait();
      ++finished;
    });
    started.wait();
    release = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      go.count_down();
    });
    for (int i = 0; i < 100; ++i) pool.submit([&] { finished += 1000; });
  }
  release.join();
  EXPECT_EQ(finished, 1);
}

TEST(WorkerPool, ZeroMeansOneForEachCore) { EXPECT_GE(WorkerPool(0).threads(), 1); }

TEST(SingleFlight, MakesAValueOnce) {
  SingleFlight<int> flights;
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const auto answer = flights.get("key", [&]() -> Result<int> {
        ++made;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return 42;
      });
      EXPECT_EQ(*answer.value, 42);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_FALSE(flights.get("key", [&]() -> Result<int> { return 1; }).made);
  EXPECT_TRUE(flights.get("other", [&]() -> Result<int> { return 1; }).made);
}

TEST(SingleFlight, ForgetsFailures) {
  SingleFlight<int> flights;
  const auto failed =
      flights.get("key", []() -> Result<int> { return fail(ErrorCode::kOffline, "not now"); });
  EXPECT_EQ(failed.value.error().message, "not now");
  EXPECT_THROW(flights.get("key", []() -> Result<int> { throw std::runtime_error("broken"); }),
               std::runtime_error);
  EXPECT_EQ(*flights.get("key", []() -> Result<int> { return 7; }).value, 7);
}

}  // namespace
}  // namespace octile
