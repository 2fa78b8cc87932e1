#include "fork.h"

#include <pthread.h>

#include <array>
#include <ranges>

namespace octile::binding {
namespace {

constinit std::array<std::mutex, static_cast<std::size_t>(ProcessWide::kCount)> mutexes;
constinit InChild* works = nullptr;

void before_fork() {
  for (std::mutex& mutex : mutexes) mutex.lock();
}

void after_fork() {
  for (std::mutex& mutex : mutexes | std::views::reverse) mutex.unlock();
}

void in_child() {
  for (const InChild* one = works; one != nullptr; one = one->next) one->work();
  after_fork();
}

// Registered when the extension is loaded, behind the library, whose handlers therefore run later
// before a fork: a thread that holds a mutex of the extension may be waiting for one of the
// library.
[[maybe_unused]] const int kRegistered = ::pthread_atfork(before_fork, after_fork, in_child);

}  // namespace

std::mutex& process_mutex(ProcessWide what) { return mutexes[static_cast<std::size_t>(what)]; }

InChild::InChild(void (*function)()) : work(function), next(works) { works = this; }

}  // namespace octile::binding
