#include "runtime/measure/timing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/measure/statistics.h"

namespace octile {
namespace {

// Limits the size of a graph whose nodes are nearly empty.
constexpr int kMostCalls = 2048;

Result<Replay> capture(const GpuSession& gpu, const Contender& contender, int calls, int slots) {
  auto graph = Graph::capture(gpu.driver(), gpu.stream(), [&]() -> Status {
    for (int i = 0; i < calls; ++i) {
      if (Status ok = contender.enqueue(i % slots, gpu.stream()); !ok) return ok;
    }
    return {};
  });
  if (!graph) return tl::unexpected<Error>(graph.error());
  return Replay{std::move(*graph), calls, 0};
}

}  // namespace

int rotation_slots(const DeviceSpec& device, std::int64_t bytes_of_a_call) {
  constexpr std::int64_t kMost = 1024;
  constexpr std::int64_t kOfSmall = 16;  // not even kMost of them leave the L2
  constexpr std::int64_t kAlone = 8;     // times the L2: what is left in it is an eighth of a call
  const std::int64_t l2 = device.l2_bytes;
  if (bytes_of_a_call >= kAlone * l2) return 1;
  const std::int64_t wanted = 2 * l2 / std::max<std::int64_t>(bytes_of_a_call, 1);
  return static_cast<int>(wanted < kMost ? std::max<std::int64_t>(wanted + 1, 2) : kOfSmall);
}

Result<Replayer> Replayer::create(const GpuSession& gpu) {
  auto start = Event::create(gpu.driver());
  if (!start) return tl::unexpected<Error>(start.error());
  auto stop = Event::create(gpu.driver());
  if (!stop) return tl::unexpected<Error>(stop.error());
  return Replayer(gpu, std::move(*start), std::move(*stop));
}

Result<double> Replayer::time(const Replay& replay) const {
  const CUstream stream = gpu_->stream();
  if (Status ok = start_.record(stream); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = replay.graph.launch(stream); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = stop_.record(stream); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = stop_.synchronize(); !ok) return tl::unexpected<Error>(ok.error());
  return stop_.elapsed_us_since(start_).map([&](double us) { return us / replay.calls; });
}

Result<Replay> Replayer::prepare(const Contender& contender, const TimingOptions& options) const {
  const int slots = contender.slots;
  auto probe = capture(*gpu_, contender, slots, slots);
  if (!probe) return probe;
  // The first time warms the device up. For long graphs it is as good as a second, and the second
  // of any graph that is long enough as good as a third.
  constexpr double kLong = 4;
  double us = 0;
  for (int i = 0; i < 3 && us * slots < (i < 2 ? kLong : 1) * options.least_replay_us; ++i) {
    const auto timed = time(*probe);
    if (!timed) return tl::unexpected<Error>(timed.error());
    us = *timed;
  }
  const double wanted = std::min<double>(kMostCalls, options.least_replay_us / std::max(us, 0.1));
  const int laps = std::max(1, static_cast<int>(std::ceil(wanted / slots)));
  auto replay = laps == 1 ? std::move(probe) : capture(*gpu_, contender, laps * slots, slots);
  if (!replay) return replay;
  replay->first_us = us;
  replay->is_timed = laps == 1;
  return replay;
}

Result<std::vector<Timing>> measure(const GpuSession& gpu, const std::vector<Contender>& contenders,
                                    const TimingOptions& options) {
  const auto replayer = Replayer::create(gpu);
  if (!replayer) return tl::unexpected<Error>(replayer.error());
  std::vector<Replay> replays;
  std::vector<Timing> timings;
  for (const Contender& contender : contenders) {
    auto replay = replayer->prepare(contender, options);
    if (!replay) return tl::unexpected<Error>(replay.error());
    replays.push_back(std::move(*replay));
    timings.push_back({contender.name, {}, 0});
  }
  double least = std::numeric_limits<double>::infinity();
  for (const Replay& replay : replays) least = std::min(least, replay.first_us);
  std::vector<std::size_t> racing;
  for (std::size_t i = 0; i < replays.size(); ++i) {
    if (replays[i].first_us <= options.most_behind * least) {
      racing.push_back(i);
    } else {
      timings[i].rounds_us = {replays[i].first_us};
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (const std::size_t at : racing) {
      const auto us = replayer->time(replays[at]);
      if (!us) return tl::unexpected<Error>(us.error());
      timings[at].rounds_us.push_back(*us);
    }
    // The order alternates between forwards and backwards (ABBA), so that a linear drift cancels.
    std::ranges::reverse(racing);
  }
  for (Timing& timing : timings) timing.median_us = median(timing.rounds_us);
  return timings;
}

}  // namespace octile
