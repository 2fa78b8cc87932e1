// Threads with a given stack size. The stack of a std::thread has the size of the process's stack
// limit (`ulimit -s`), which may be 64 KiB.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace octile {

class Thread {
 public:
  static constexpr std::size_t kStackBytes = std::size_t{8} << 20;

  // Starts a thread that does the work, whose exceptions end the process. Errors:
  // std::system_error if the system refuses a thread, std::bad_alloc.
  explicit Thread(std::function<void()> work, std::size_t stack_bytes = kStackBytes);
  Thread(Thread&& other) noexcept : thread_(std::exchange(other.thread_, 0)) {}
  Thread& operator=(Thread&&) = delete;
  ~Thread() { join(); }

  void join();

 private:
  pthread_t thread_ = 0;  // 0: none
};

// NVRTC recurses as deep as a source nests.
inline constexpr std::size_t kStackBytesOfNvrtc = std::size_t{64} << 20;

// Does the work on a stack of this size in bytes and waits for it. Exceptions reach the caller,
// whose thread takes the host's signals meanwhile. If the system refuses a thread, the caller's
// stack serves.
void run_on_stack(std::size_t bytes, const std::function<void()>& work);

}  // namespace octile
