#include "runtime/base/fork.h"

#include <pthread.h>

#include <array>
#include <ctime>

#include "cache/descriptor.h"

namespace octile {
namespace {

using Clock = std::chrono::steady_clock;

constinit std::array<std::mutex, static_cast<std::size_t>(ProcessWide::kCount)> mutexes;
// Which of them this fork holds. Guarded by the C library, which forks one at a time.
constinit std::array<bool, static_cast<std::size_t>(ProcessWide::kCount)> held{};

// std::timed_mutex would need a call that ThreadSanitizer does not know.
bool lock_until(std::mutex& mutex, Clock::time_point end) {
  constexpr timespec kPause{0, 50'000};
  while (!mutex.try_lock()) {
    if (Clock::now() >= end) return false;
    ::nanosleep(&kPause, nullptr);
  }
  return true;
}

void unlock_all() {
  for (std::size_t i = 0; i < mutexes.size(); ++i)
    if (held[i]) mutexes[i].unlock();
}

// Whoever holds one of the mutexes may open files.
void before_fork() {
  const auto end = fork_lost() ? Clock::time_point() : Clock::now() + kMostForkWait;
  for (std::size_t i = 0; i < mutexes.size(); ++i) held[i] = lock_until(mutexes[i], end);
  cache::hold_descriptors_for_fork(end);
}

void after_fork() {
  cache::release_descriptors_after_fork();
  unlock_all();
}

void in_child() {
  ++fork_count;
  for (const bool one : held)
    if (!one) fork_went_ahead = true;
  cache::close_descriptors_of_the_parent();
  unlock_all();
}

// Registered when the library is loaded, and forgotten by the C library when it is unloaded.
[[maybe_unused]] const int kRegistered = ::pthread_atfork(before_fork, after_fork, in_child);

}  // namespace

std::mutex& process_mutex(ProcessWide what) { return mutexes[static_cast<std::size_t>(what)]; }

}  // namespace octile
