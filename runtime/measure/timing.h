// Comparing calls on one GPU: each is replayed as a CUDA graph over rotating operands, in rounds
// that alternate between the contenders, because clocks and power drift by more than the
// differences sought.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/measure/gpu_session.h"

namespace octile {

struct Contender {
  std::string name;
  // Puts one call on the stream, on the operands of `slot`. Called inside a capture.
  std::function<Status(int slot, CUstream stream)> enqueue;
};

struct Timing {
  std::string name;
  std::vector<double> rounds_us;  // microseconds a call, by round
  double median_us = 0;
  double p10_us = 0, p90_us = 0;
};

struct TimingOptions {
  int rounds = 30;
  int slots = 1;
  // Long enough that the resolution of events (0.5 us) and the first node do not count.
  double least_replay_us = 1500;
};

// Several calls of one contender as a graph.
struct Replay {
  Graph graph;
  int calls = 0;
  double first_us = 0;  // a call, while it was made ready: what a round may be expected to take
};

// Times replays on a session's stream.
class Replayer {
 public:
  static Result<Replayer> create(const GpuSession& gpu);

  // A graph long enough, found by timing a short one; both warm the device up.
  Result<Replay> prepare(const Contender& contender, const TimingOptions& options) const;
  // Microseconds a call of one replay, by events.
  Result<double> time(const Replay& replay) const;

 private:
  Replayer(const GpuSession& gpu, Event start, Event stop)
      : gpu_(&gpu), start_(std::move(start)), stop_(std::move(stop)) {}

  const GpuSession* gpu_;
  Event start_;
  Event stop_;
};

// In the order of the contenders.
Result<std::vector<Timing>> measure(const GpuSession& gpu, const std::vector<Contender>& contenders,
                                    const TimingOptions& options);

// Fills in the median and the quantiles from the rounds.
void summarize(Timing& timing);

// Median over the rounds of theirs / ours, round by round: above 1, ours is the faster.
double median_ratio(const Timing& theirs, const Timing& ours);

nlohmann::ordered_json to_json(const Timing& timing);

}  // namespace octile
