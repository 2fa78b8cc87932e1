// Kernels that the library's threads compile in the background, also for searches that have not
// begun.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/engine/library.h"
#include "runtime/prove/build_order.h"

namespace octile::tuner {

class BuildQueue {
 public:
  // The library outlives the queue.
  BuildQueue(Library& library, DeviceSpec device) : library_(library), device_(std::move(device)) {}
  // Drops builds that have not begun and waits for the others.
  ~BuildQueue();
  BuildQueue(const BuildQueue&) = delete;
  BuildQueue& operator=(const BuildQueue&) = delete;

  // Starts a build before all that are needed later, or has one that waits come sooner. Does
  // nothing if it has begun. If problems have the same kernel, the engine compiles it once.
  void start(const Problem& problem, const KernelConfig& config, Need need);
  // Has one of the library's threads find out which builds follow later, and starts those.
  using MakeConfigs = std::function<std::vector<KernelConfig>()>;
  void start_later(const Problem& problem, MakeConfigs configs);

  // Returns a build that was started, or nullopt if it is not ready within `seconds`.
  std::optional<Result<Built>> wait(const Problem& problem, const KernelConfig& config,
                                    double seconds);

 private:
  struct Flight {
    Flight(Problem its_problem, KernelConfig its_config)
        : problem(std::move(its_problem)), config(std::move(its_config)) {}
    const Problem problem;
    const KernelConfig config;
    std::promise<Result<Built>> promise;
    std::shared_future<Result<Built>> result = promise.get_future().share();
  };
  static std::string key_of(const Problem& problem, const KernelConfig& config);
  void build_next();

  Library& library_;
  const DeviceSpec device_;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;  // guards what is below
  std::condition_variable later_started_;
  int making_configs_ = 0;
  std::unordered_map<std::string, Flight> flights_;
  BuildOrder order_;
};

}  // namespace octile::tuner
