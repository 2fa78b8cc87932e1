// Kernels compiled by the library's threads while something else is done, possibly for searches
// that have not begun yet.
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
  // What has not begun is dropped; what has is waited for.
  ~BuildQueue();
  BuildQueue(const BuildQueue&) = delete;
  BuildQueue& operator=(const BuildQueue&) = delete;

  // Nothing happens where it was started before. The engine sees to it that problems whose kernels
  // are the same compile them once.
  void start(const Problem& problem, const KernelConfig& config);

  // Of one that was started; waits for up to `seconds`. nullopt: not ready yet.
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
