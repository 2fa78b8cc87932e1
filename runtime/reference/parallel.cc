#include "runtime/reference/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/blocked_signals.h"
#include "runtime/base/float_environment.h"
#include "runtime/base/thread.h"

namespace octile::reference {
namespace {

class Dispenser {
 public:
  Dispenser(std::int64_t count, std::int64_t grain, RangeBody call, const void* body)
      : count_(count), grain_(grain), call_(call), body_(body) {}

  void work(int thread) {
    const DefaultFloatEnvironment environment;
    try {
      for (std::int64_t begin = next_.fetch_add(grain_); begin < count_;
           begin = next_.fetch_add(grain_)) {
        call_(body_, begin, std::min(begin + grain_, count_), thread);
      }
    } catch (...) {
      next_.store(count_);  // the other threads stop at their next range
      const std::scoped_lock lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::int64_t count_;
  std::int64_t grain_;
  RangeBody call_;
  const void* body_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

int thread_count(std::int64_t count, std::int64_t grain, int threads) {
  if (threads <= 0) threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const std::int64_t ranges = (count + grain - 1) / grain;
  return static_cast<int>(std::clamp<std::int64_t>(ranges, 1, threads));
}

void run_ranges(std::int64_t count, std::int64_t grain, int threads, RangeBody call,
                const void* body) {
  if (count <= 0) return;
  const int most = thread_count(count, grain, threads);
  Dispenser dispenser(count, grain, call, body);
  std::vector<Thread> helpers;
  try {
    helpers.reserve(static_cast<std::size_t>(most - 1));
    const BlockedSignals blocked;
    for (int thread = 1; thread < most; ++thread)
      helpers.emplace_back([&dispenser, thread] { dispenser.work(thread); });
  } catch (const std::exception&) {
    // std::system_error or std::bad_alloc: the threads that run do the work.
  }
  dispenser.work(0);
  for (Thread& thread : helpers) thread.join();
  dispenser.rethrow();
}

}  // namespace octile::reference
