#include "tools/common/timing.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace octile::tools {
namespace {

// Of a node that is nearly empty; bounds the graph.
constexpr int kMostCalls = 2048;

struct Replay {
  const Contender* contender;
  Graph graph;
  int calls;
};

struct Clock {
  Event start;
  Event stop;
};

Result<Clock> make_clock(const GpuSession& gpu) {
  auto start = Event::create(gpu.driver());
  if (!start) return tl::unexpected<Error>(start.error());
  auto stop = Event::create(gpu.driver());
  if (!stop) return tl::unexpected<Error>(stop.error());
  return Clock{std::move(*start), std::move(*stop)};
}

Result<Replay> capture(const GpuSession& gpu, const Contender& contender, int calls, int slots) {
  auto graph = Graph::capture(gpu.driver(), gpu.stream(), [&]() -> Status {
    for (int i = 0; i < calls; ++i) {
      if (Status ok = contender.enqueue(i % slots, gpu.stream()); !ok) return ok;
    }
    return {};
  });
  if (!graph) return tl::unexpected<Error>(graph.error());
  return Replay{&contender, std::move(*graph), calls};
}

// Microseconds a call of one replay.
Result<double> time_once(const GpuSession& gpu, const Clock& clock, const Replay& replay) {
  if (Status ok = clock.start.record(gpu.stream()); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = replay.graph.launch(gpu.stream()); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = clock.stop.record(gpu.stream()); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = clock.stop.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return clock.stop.elapsed_us_since(clock.start).map([&](double us) { return us / replay.calls; });
}

// A graph long enough, found by timing a short one; both warm the device up.
Result<Replay> prepare(const GpuSession& gpu, const Clock& clock, const Contender& contender,
                       const TimingOptions& options) {
  auto probe = capture(gpu, contender, options.slots, options.slots);
  if (!probe) return probe;
  double us = 0;
  for (int i = 0; i < 3; ++i) {
    const auto timed = time_once(gpu, clock, *probe);
    if (!timed) return tl::unexpected<Error>(timed.error());
    us = *timed;
  }
  const double wanted = std::min<double>(kMostCalls, options.least_replay_us / std::max(us, 0.1));
  const int laps = std::max(1, static_cast<int>(std::ceil(wanted / options.slots)));
  return capture(gpu, contender, laps * options.slots, options.slots);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

}  // namespace

Result<std::vector<Timing>> measure(const GpuSession& gpu, const std::vector<Contender>& contenders,
                                    const TimingOptions& options) {
  const auto clock = make_clock(gpu);
  if (!clock) return tl::unexpected<Error>(clock.error());
  std::vector<Replay> replays;
  std::vector<Timing> timings;
  for (const Contender& contender : contenders) {
    auto replay = prepare(gpu, *clock, contender, options);
    if (!replay) return tl::unexpected<Error>(replay.error());
    replays.push_back(std::move(*replay));
    timings.push_back({contender.name, {}, 0, 0, 0});
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < replays.size(); ++i) {
      // Forwards and backwards in turn (ABBA): a linear drift cancels.
      const std::size_t at = round % 2 == 0 ? i : replays.size() - 1 - i;
      const auto us = time_once(gpu, *clock, replays[at]);
      if (!us) return tl::unexpected<Error>(us.error());
      timings[at].rounds_us.push_back(*us);
    }
  }
  for (Timing& timing : timings) summarize(timing);
  return timings;
}

void summarize(Timing& timing) {
  timing.median_us = quantile(timing.rounds_us, 0.5);
  timing.p10_us = quantile(timing.rounds_us, 0.1);
  timing.p90_us = quantile(timing.rounds_us, 0.9);
}

double median_ratio(const Timing& theirs, const Timing& ours) {
  std::vector<double> ratios;
  ratios.reserve(ours.rounds_us.size());
  for (std::size_t i = 0; i < ours.rounds_us.size(); ++i) {
    ratios.push_back(theirs.rounds_us[i] / ours.rounds_us[i]);
  }
  return quantile(std::move(ratios), 0.5);
}

Json to_json(const Timing& timing) {
  return {{"name", timing.name},
          {"median_us", timing.median_us},
          {"p10_us", timing.p10_us},
          {"p90_us", timing.p90_us},
          {"rounds", timing.rounds_us.size()}};
}

}  // namespace octile::tools
