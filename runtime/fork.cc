#include "runtime/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <array>

namespace octile {
namespace {

constinit std::array<std::mutex, static_cast<std::size_t>(ProcessWide::kCount)> mutexes;
constinit DescriptorOfThisProcess* descriptors = nullptr;

void before_fork() {
  for (std::mutex& mutex : mutexes) mutex.lock();
}

void after_fork() {
  for (std::mutex& mutex : mutexes) mutex.unlock();
}

}  // namespace

void close_descriptors_of_the_parent() {
  for (DescriptorOfThisProcess* one = descriptors; one != nullptr; one = one->next_) {
    ::close(one->number_);
    one->number_ = -1;
  }
  descriptors = nullptr;
}

namespace {

void in_child() {
  ++fork_count;
  close_descriptors_of_the_parent();
  after_fork();
}

// Registered when the library is loaded, and forgotten by the C library when it is unloaded.
[[maybe_unused]] const int kRegistered = ::pthread_atfork(before_fork, after_fork, in_child);

}  // namespace

std::mutex& process_mutex(ProcessWide what) { return mutexes[static_cast<std::size_t>(what)]; }

DescriptorOfThisProcess::DescriptorOfThisProcess(int number) noexcept : number_(number) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kChannels));
  next_ = descriptors;
  if (next_ != nullptr) next_->before_ = this;
  descriptors = this;
}

DescriptorOfThisProcess::~DescriptorOfThisProcess() {
  const std::scoped_lock lock(process_mutex(ProcessWide::kChannels));
  if (number_ < 0) return;  // closed by the fork that made this process, and in no list
  ::close(number_);
  if (next_ != nullptr) next_->before_ = before_;
  (before_ != nullptr ? before_->next_ : descriptors) = next_;
}

}  // namespace octile
