#include "runtime/engine/worker_pool.h"

#include <algorithm>
#include <utility>

namespace octile {

WorkerPool::WorkerPool(int threads)
    : limit_(threads > 0 ? threads
                         : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

WorkerPool::~WorkerPool() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::submit(Job job) {
  {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(job));
    const bool all_busy = static_cast<std::size_t>(idle_) < queue_.size();
    if (all_busy && static_cast<int>(workers_.size()) < limit_)
      workers_.emplace_back([this] { work(); });
  }
  wake_.notify_one();
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (stopping_) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // frees what it holds before the next wait
    lock.lock();
  }
}

}  // namespace octile
