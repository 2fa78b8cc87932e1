#include "runtime/reference/parallel.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/blocked_signals.h"

namespace octile::reference {
namespace {

// Sets the default floating-point environment for a scope. A caller may flush subnormals
// (deep-learning frameworks offer the switch), and new threads inherit that; docs/numerics.md
// flushes nothing.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_{};
};

class Dispenser {
 public:
  Dispenser(std::int64_t count, std::int64_t grain,
            const std::function<void(std::int64_t, std::int64_t)>& body)
      : count_(count), grain_(grain), body_(body) {}

  void work() {
    const DefaultFloatEnvironment environment;
    try {
      for (std::int64_t begin = next_.fetch_add(grain_); begin < count_;
           begin = next_.fetch_add(grain_)) {
        body_(begin, std::min(begin + grain_, count_));
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
  const std::function<void(std::int64_t, std::int64_t)>& body_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

void parallel_for(std::int64_t count, std::int64_t grain, int threads,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
  if (count <= 0) return;
  if (threads <= 0) threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const std::int64_t ranges = (count + grain - 1) / grain;
  const std::int64_t helpers = std::min<std::int64_t>(threads, ranges) - 1;

  Dispenser dispenser(count, grain, body);
  std::vector<std::thread> pool;
  pool.reserve(static_cast<std::size_t>(helpers));
  try {
    const BlockedSignals blocked;
    for (std::int64_t i = 0; i < helpers; ++i)
      pool.emplace_back([&dispenser] { dispenser.work(); });
  } catch (const std::exception&) {
    // std::system_error or std::bad_alloc: the threads that run do the work.
  }
  dispenser.work();
  for (std::thread& thread : pool) thread.join();
  dispenser.rethrow();
}

}  // namespace octile::reference
