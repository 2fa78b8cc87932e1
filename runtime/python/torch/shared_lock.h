// A lock that several readers or one writer hold, for std::shared_lock and std::unique_lock.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_SHARED_LOCK_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_SHARED_LOCK_H_

#include <atomic>

namespace octile::binding {

// Unlike std::shared_mutex it is one number, so that the child of a fork finds it as it was,
// without threads that wait for it. Who waits is not served in order: readers may hold up a writer
// for as long as they follow one another.
class SharedLock {
 public:
  bool try_lock() {
    int none = 0;
    return holders_.compare_exchange_strong(none, kWriter, std::memory_order_acquire);
  }
  void lock() {
    while (!try_lock()) {
      const int now = holders_.load();
      if (now != 0) holders_.wait(now);
    }
  }
  void unlock() {
    holders_.store(0, std::memory_order_release);
    holders_.notify_all();
  }

  bool try_lock_shared() {
    int now = holders_.load();
    while (now != kWriter) {
      if (holders_.compare_exchange_weak(now, now + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }
  void lock_shared() {
    while (!try_lock_shared()) holders_.wait(kWriter);
  }
  void unlock_shared() {
    if (holders_.fetch_sub(1, std::memory_order_release) == 1) holders_.notify_all();
  }

 private:
  static constexpr int kWriter = -1;

  std::atomic<int> holders_{0};  // readers, or kWriter
};

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_SHARED_LOCK_H_
