#include "runtime/prove/gpu_bench.h"

#include <utility>

namespace octile::tuner {
namespace {

// A measurement takes so long: the events' resolution, half a microsecond, is a twentieth of a
// percent of it.
constexpr double kReplayUs = 1000;

}  // namespace

bool TunerContext::take_device() {
  const auto state = turn.try_take();
  if (state && *state != cache::TurnState::kMine) {
    if (!waiting_) waiting_ = std::chrono::steady_clock::now();
    return false;
  }
  if (waiting_) waited_ += std::chrono::steady_clock::now() - *waiting_;
  waiting_.reset();
  return true;
}

double TunerContext::seconds_waited() const {
  auto waited = waited_;
  if (waiting_) waited += std::chrono::steady_clock::now() - *waiting_;
  return waited.count();
}

void GpuBench::start_builds(std::span<const int> candidates) {
  for (const int candidate : candidates)
    context_.builds.start(problem_, config(candidate), Need::kNow);
}

std::optional<Result<BuildReport>> GpuBench::build(int candidate, double seconds) {
  auto built = context_.builds.wait(problem_, config(candidate), seconds);
  if (!built) return std::nullopt;
  if (!*built) return Result<BuildReport>(tl::unexpected<Error>(built->error()));
  const KernelBuild& kernel = *(*built)->kernel;
  const BuildReport report{kernel.spill_store_bytes + kernel.spill_load_bytes, kernel.stack_bytes};
  built_.emplace(candidate, std::move(**built));
  return Result<BuildReport>(report);
}

Result<double> GpuBench::time(int candidate) {
  auto found = replays_.find(candidate);
  if (found == replays_.end()) {
    TimingOptions options;
    options.least_replay_us = kReplayUs;
    auto replay = replayer_.prepare(contender(candidate), options);
    if (!replay) return tl::unexpected<Error>(replay.error());
    found = replays_.emplace(candidate, std::move(*replay)).first;
    if (found->second.is_timed) return found->second.first_us;
  }
  return replayer_.time(found->second);
}

}  // namespace octile::tuner
