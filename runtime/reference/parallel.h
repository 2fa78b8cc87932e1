// Spreads independent blocks of work over threads. The result of a block depends neither on its
// thread nor on the order of blocks, so results are the same for any thread count.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "generator/core/error.h"

namespace octile::reference {

// Returns how many threads parallel_for uses at most, the caller's included: `threads`, or one per
// core if that is 0, but no more than there are ranges.
int thread_count(std::int64_t count, std::int64_t grain, int threads);

// One range of a parallel_for, on the thread with this number.
using RangeBody = void (*)(const void* body, std::int64_t begin, std::int64_t end, int thread);
void run_ranges(std::int64_t count, std::int64_t grain, int threads, RangeBody call,
                const void* body);

// Calls body(begin, end) or body(begin, end, thread) over disjoint ranges of at most `grain`
// covering [0, count). Threads have the numbers from 0 to thread_count() - 1; 0 is the caller's.
// Every body runs under the default floating-point environment (nearest even, subnormals kept). The
// first exception thrown by a body is rethrown once all threads have stopped. Nothing else throws:
// if the system refuses memory or a thread, those that run do the work.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t grain, int threads, const Body& body) {
  const RangeBody call = [](const void* object, std::int64_t begin, std::int64_t end, int thread) {
    const Body& range = *static_cast<const Body*>(object);
    if constexpr (std::is_invocable_v<const Body&, std::int64_t, std::int64_t, int>) {
      range(begin, end, thread);
    } else {
      range(begin, end);
    }
  };
  run_ranges(count, grain, threads, call, &body);
}

// Calls body(index, thread), which returns a Status, for each index of [0, count). Returns the
// error of the lowest index that has one. After an error, indices that have not begun are left out.
template <typename Body>
Status try_parallel_for(std::int64_t count, int threads, const Body& body) {
  std::mutex mutex;
  std::optional<std::pair<std::int64_t, Error>> failure;
  std::atomic<bool> has_failed = false;
  parallel_for(count, 1, threads, [&](std::int64_t index, std::int64_t /*end*/, int thread) {
    if (has_failed) return;
    const Status ok = body(index, thread);
    if (ok) return;
    has_failed = true;
    const std::scoped_lock lock(mutex);
    if (!failure || index < failure->first) failure = {index, ok.error()};
  });
  if (failure) return tl::unexpected<Error>(failure->second);
  return {};
}

// Scratch memory for the threads of a parallel_for, allocated before they run, so that no body has
// to. T is not initialised.
template <typename T>
class Workspaces {
 public:
  // Makes one for each of up to `threads` threads. If memory is short, there are fewer. Throws
  // std::bad_alloc if there is none for one.
  explicit Workspaces(int threads) : threads_(std::max(1, threads)) {
    for (;; threads_ /= 2) {
      memory_.reset(new (std::nothrow) T[static_cast<std::size_t>(threads_)]);
      if (memory_ != nullptr) return;
      if (threads_ == 1) throw std::bad_alloc();
    }
  }

  // Returns the number of threads that a parallel_for may use.
  int threads() const { return threads_; }
  T& operator[](int thread) const { return memory_[static_cast<std::size_t>(thread)]; }

 private:
  int threads_;
  std::unique_ptr<T[]> memory_;  // NOLINT(cppcoreguidelines-avoid-c-arrays): nothing is cleared
};

}  // namespace octile::reference
