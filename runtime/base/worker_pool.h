// The threads that compile and load. The library handle sets their number. They start when first
// needed, and block the host's signals.
//
// Starting a thread or allocating memory may fail at any time. Running threads then do the work,
// and without any the caller does it. No task is queued unless a thread will take it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "runtime/base/thread.h"

namespace octile {

class WorkerPool {
 public:
  using Job = std::function<void()>;

  explicit WorkerPool(int threads);  // 0: one per core
  // Waits for running jobs and drops queued ones. No run() may be in progress.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Queues a job. Jobs start in the order given and must not throw. Without a thread, or without
  // the memory to queue it, the job runs before submit returns.
  void submit(Job job) noexcept;

  // Calls work(i) for each i below `count` and returns when all calls have ended. Work must not
  // throw. Needs no memory.
  void run(std::size_t count, const std::function<void(std::size_t)>& work) noexcept;

  int threads() const { return limit_; }

 private:
  // Calls that wait in the queue. The queue owns a job's task; the task of run() is on its caller's
  // stack.
  struct Task {
    Job job;  // else `work`
    const std::function<void(std::size_t)>* work = nullptr;
    std::size_t count = 1;
    std::size_t begun = 0;
    std::size_t ended = 0;
    Task* next = nullptr;
  };
  using Lock = std::unique_lock<std::mutex>;

  bool enqueue(Task& task);
  void start_threads(std::size_t wanted);
  void work();
  void make_call(Task& task, Lock& lock);

  const int limit_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable wake_;
  std::condition_variable ended_;
  Task* first_ = nullptr;  // tasks with calls that have not begun
  std::size_t waiting_calls_ = 0;
  int idle_ = 0;
  bool stopping_ = false;
  std::vector<Thread> workers_;
};

}  // namespace octile
