// Comparing calls on one GPU: each is replayed as a CUDA graph over rotating operands, in rounds
// that alternate between the contenders, because clocks and power drift by more than the
// differences sought.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/common/gpu_session.h"
#include "tools/common/handles.h"

namespace octile::tools {

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

// In the order of the contenders.
Result<std::vector<Timing>> measure(const GpuSession& gpu, const std::vector<Contender>& contenders,
                                    const TimingOptions& options);

// Fills in the median and the quantiles from the rounds.
void summarize(Timing& timing);

// Median over the rounds of theirs / ours, round by round: above 1, ours is the faster.
double median_ratio(const Timing& theirs, const Timing& ours);

Json to_json(const Timing& timing);

}  // namespace octile::tools
