#include "runtime/base/worker_pool.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "runtime/base/blocked_signals.h"

namespace octile {

WorkerPool::WorkerPool(int threads)
    : limit_(threads > 0 ? threads
                         : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  workers_.reserve(static_cast<std::size_t>(limit_));
}

WorkerPool::~WorkerPool() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (Thread& worker : workers_) worker.join();
  while (first_ != nullptr) delete std::exchange(first_, first_->next);
}

void WorkerPool::submit(Job job) noexcept {
  std::unique_ptr<Task> task(new (std::nothrow) Task);
  if (task == nullptr) return job();
  task->job = std::move(job);  // moving a function does not allocate
  {
    const std::scoped_lock lock(mutex_);
    if (enqueue(*task)) {
      [[maybe_unused]] const Task* const queued = task.release();  // the queue's now
      return;
    }
  }
  task->job();
}

void WorkerPool::run(std::size_t count, const std::function<void(std::size_t)>& work) noexcept {
  if (count == 0) return;
  Task task;
  task.work = &work;
  task.count = count;
  Lock lock(mutex_);
  if (!enqueue(task))
    while (task.begun < task.count) make_call(task, lock);
  ended_.wait(lock, [&task] { return task.ended == task.count; });
}

// Returns false, and queues nothing, if there is no thread to take the task.
bool WorkerPool::enqueue(Task& task) {
  start_threads(waiting_calls_ + task.count);
  if (workers_.empty()) return false;
  Task** last = &first_;
  while (*last != nullptr) last = &(*last)->next;
  *last = &task;
  waiting_calls_ += task.count;
  task.count == 1 ? wake_.notify_one() : wake_.notify_all();
  return true;
}

// Starts threads until as many are idle as calls wait. The system may refuse some.
void WorkerPool::start_threads(std::size_t wanted) {
  const auto idle = static_cast<std::size_t>(idle_);
  if (idle >= wanted) return;
  const BlockedSignals blocked;
  std::size_t starting =
      std::min(wanted - idle, static_cast<std::size_t>(limit_) - workers_.size());
  try {
    for (; starting > 0; --starting) workers_.emplace_back([this] { this->work(); });
  } catch (const std::exception&) {
    // std::system_error or std::bad_alloc: the threads that run serve.
  }
}

void WorkerPool::work() {
  Lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stopping_ || first_ != nullptr; });
    --idle_;
    if (stopping_) return;
    Task& task = *first_;
    --waiting_calls_;
    if (task.begun + 1 == task.count) first_ = task.next;
    make_call(task, lock);
  }
}

// Makes the task's next call without the lock.
void WorkerPool::make_call(Task& task, Lock& lock) {
  const std::size_t index = task.begun++;
  lock.unlock();
  if (task.work == nullptr) {
    task.job();
    delete &task;  // frees what the job holds before the next wait
    lock.lock();
    return;
  }
  (*task.work)(index);
  lock.lock();
  if (++task.ended == task.count) ended_.notify_all();
}

}  // namespace octile
