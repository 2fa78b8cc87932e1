#include "runtime/base/thread.h"

#include <exception>
#include <memory>
#include <optional>
#include <system_error>

#include "runtime/base/blocked_signals.h"

namespace octile {
namespace {

extern "C" void* octile_thread_begins(void* work) noexcept {
  const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(work));
  (*own)();
  return nullptr;
}

}  // namespace

Thread::Thread(std::function<void()> work, std::size_t stack_bytes) {
  auto own = std::make_unique<std::function<void()>>(std::move(work));
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error == 0) {
    error = pthread_attr_setstacksize(&attributes, stack_bytes);
    if (error == 0) error = pthread_create(&thread_, &attributes, octile_thread_begins, own.get());
    pthread_attr_destroy(&attributes);
  }
  if (error != 0) {
    thread_ = 0;
    throw std::system_error(error, std::generic_category());
  }
  [[maybe_unused]] const auto* const taken = own.release();  // the thread's now
}

void Thread::join() {
  if (thread_ != 0) pthread_join(std::exchange(thread_, 0), nullptr);
}

void run_on_stack(std::size_t bytes, const std::function<void()>& work) {
  std::exception_ptr failure;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  std::optional<Thread> thread;
  try {
    const BlockedSignals blocked;
    thread.emplace(guarded, bytes);
  } catch (const std::exception&) {
    // std::system_error or std::bad_alloc: this thread does the work.
  }
  thread ? thread->join() : guarded();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace octile
