#include "runtime/prove/build_queue.h"

#include <chrono>
#include <utility>

#include "runtime/base/guarded.h"

namespace octile::tuner {

BuildQueue::~BuildQueue() {
  stopping_ = true;
  {
    std::unique_lock lock(mutex_);
    later_started_.wait(lock, [this] { return making_configs_ == 0; });
  }
  for (const auto& [key, flight] : flights_) flight.result.wait();
}

std::string BuildQueue::key_of(const Problem& problem, const KernelConfig& config) {
  return to_text(problem) + " / " + to_text(config);
}

void BuildQueue::start(const Problem& problem, const KernelConfig& config, Need need) {
  const std::string key = key_of(problem, config);
  {
    const std::scoped_lock lock(mutex_);
    const bool is_new = flights_.try_emplace(key, problem, config).second;
    if (!is_new && !order_.waits(key)) return;
    order_.ask(key, need);
    if (!is_new) return;
  }
  library_.workers.submit([this] { build_next(); });
}

void BuildQueue::start_later(const Problem& problem, MakeConfigs configs) {
  {
    const std::scoped_lock lock(mutex_);
    ++making_configs_;
  }
  library_.workers.submit([this, problem, configs = std::move(configs)] {
    // If this fails, the kernels are compiled once they are needed.
    (void)guarded([&]() -> Status {
      if (stopping_) return {};
      for (const KernelConfig& config : configs()) start(problem, config, Need::kLater);
      return {};
    });
    const std::scoped_lock lock(mutex_);
    --making_configs_;
    later_started_.notify_all();
  });
}

void BuildQueue::build_next() {
  Flight* flight = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    const auto key = order_.next();
    if (!key) return;
    flight = &flights_.at(*key);  // which stays where it is
  }
  Result<Built> built;
  const Status ok = guarded([&]() -> Status {
    if (stopping_) return fail(ErrorCode::kInternal, "the search ended before this was compiled");
    built = library_.engine.build(flight->problem, flight->config, device_, Purpose::kTrial);
    return {};
  });
  if (!ok) built = tl::unexpected<Error>(ok.error());
  flight->promise.set_value(std::move(built));
}

std::optional<Result<Built>> BuildQueue::wait(const Problem& problem, const KernelConfig& config,
                                              double seconds) {
  const auto result = [&] {
    const std::scoped_lock lock(mutex_);
    return flights_.at(key_of(problem, config)).result;
  }();
  if (result.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready)
    return std::nullopt;
  return result.get();
}

}  // namespace octile::tuner
