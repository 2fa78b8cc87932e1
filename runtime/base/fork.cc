#include "runtime/base/fork.h"

#include <pthread.h>

#include <array>

#include "cache/descriptor.h"

namespace octile {
namespace {

constinit std::array<std::mutex, static_cast<std::size_t>(ProcessWide::kCount)> mutexes;

void unlock_all() {
  for (std::mutex& mutex : mutexes) mutex.unlock();
}

// Whoever holds one of the mutexes may open files.
void before_fork() {
  for (std::mutex& mutex : mutexes) mutex.lock();
  cache::hold_descriptors_for_fork();
}

void after_fork() {
  cache::release_descriptors_after_fork();
  unlock_all();
}

void in_child() {
  ++fork_count;
  cache::close_descriptors_of_the_parent();
  unlock_all();
}

// Registered when the library is loaded, and forgotten by the C library when it is unloaded.
[[maybe_unused]] const int kRegistered = ::pthread_atfork(before_fork, after_fork, in_child);

}  // namespace

std::mutex& process_mutex(ProcessWide what) { return mutexes[static_cast<std::size_t>(what)]; }

}  // namespace octile
