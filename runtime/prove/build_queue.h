// Kernels that the library's threads compile in the background, also for searches that have not
// begun.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/engine/library.h"

namespace octile::tuner {

class BuildQueue {
 public:
  // The library outlives the queue.
  BuildQueue(Library& library, DeviceSpec device) : library_(library), device_(std::move(device)) {}
  // Drops builds that have not begun and waits for the others.
  ~BuildQueue();
  BuildQueue(const BuildQueue&) = delete;
  BuildQueue& operator=(const BuildQueue&) = delete;

  // Starts a build; does nothing if it was started before. If problems have the same kernel, the
  // engine compiles it once.
  void start(const Problem& problem, const KernelConfig& config);

  // Returns a build that was started, or nullopt if it is not ready within `seconds`.
  std::optional<Result<Built>> wait(const Problem& problem, const KernelConfig& config,
                                    double seconds);

 private:
  using Flight = std::shared_future<Result<Built>>;
  static std::string key_of(const Problem& problem, const KernelConfig& config);

  Library& library_;
  const DeviceSpec device_;
  std::atomic<bool> stopping_ = false;
  std::unordered_map<std::string, Flight> flights_;
};

}  // namespace octile::tuner
