// The threads that compile and load. The library handle says how many. They start when first
// needed.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace octile {

class WorkerPool {
 public:
  using Job = std::function<void()>;

  explicit WorkerPool(int threads);  // 0: one per core
  // Waits for running jobs and drops queued ones.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Jobs start in the order given and must not throw.
  void submit(Job job);
  int threads() const { return limit_; }

 private:
  void work();

  const int limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  int idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace octile
