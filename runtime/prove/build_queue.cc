#include "runtime/prove/build_queue.h"

#include <chrono>
#include <utility>

#include "runtime/base/guarded.h"

namespace octile::tuner {

BuildQueue::~BuildQueue() {
  stopping_ = true;
  for (const auto& [key, flight] : flights_) flight.wait();
}

std::string BuildQueue::key_of(const Problem& problem, const KernelConfig& config) {
  return to_text(problem) + " / " + to_text(config);
}

void BuildQueue::start(const Problem& problem, const KernelConfig& config) {
  const std::string key = key_of(problem, config);
  if (flights_.contains(key)) return;
  auto promise = std::make_shared<std::promise<Result<Built>>>();
  flights_.emplace(key, promise->get_future().share());
  library_.workers.submit([this, promise, problem, config] {
    Result<Built> built;
    const Status ok = guarded([&]() -> Status {
      if (stopping_) return fail(ErrorCode::kInternal, "the search ended before this was compiled");
      built = library_.engine.build(problem, config, device_);
      return {};
    });
    if (!ok) built = tl::unexpected<Error>(ok.error());
    promise->set_value(std::move(built));
  });
}

std::optional<Result<Built>> BuildQueue::wait(const Problem& problem, const KernelConfig& config,
                                              double seconds) {
  const Flight& flight = flights_.at(key_of(problem, config));
  if (flight.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready)
    return std::nullopt;
  return flight.get();
}

}  // namespace octile::tuner
