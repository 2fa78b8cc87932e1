// Compares calls on one GPU. Each call is replayed as a CUDA graph over rotating operands, in
// rounds that alternate between the contenders. Clocks and power drift by more than the differences
// to be measured, so separate runs could not be compared.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "runtime/measure/gpu_session.h"

namespace octile {

struct Contender {
  std::string name;
  // Puts one call on the stream with the operands of `slot`. It runs inside a capture.
  std::function<Status(int slot, CUstream stream)> enqueue;
  int slots = 1;  // sets of operands that calls take in turn, so that none is in the L2
};

struct Timing {
  std::string name;
  std::vector<double> rounds_us;  // microseconds for each call, by round
  double median_us = 0;
};

// Returns how many copies of the operands of one call pass twice the L2 together: at least 2,
// unless one alone leaves nothing of its beginning in the L2.
int rotation_slots(const DeviceSpec& device, std::int64_t bytes_of_a_call);

struct TimingOptions {
  int rounds = 30;
  // Replays are long enough to make the resolution of events (0.5 us) and the first node
  // negligible.
  double least_replay_us = 1500;
  // Contenders whose time during preparation is this many times the least have no round but that.
  double most_behind = std::numeric_limits<double>::infinity();
};

// A graph of several calls of one contender.
struct Replay {
  Graph graph;
  int calls = 0;
  double first_us = 0;    // time of one call during preparation; predicts the time of a round
  bool is_timed = false;  // first_us is the time of a call in this very graph
};

// Times replays on a session's stream.
class Replayer {
 public:
  static Result<Replayer> create(const GpuSession& gpu);

  // Returns a graph that is long enough, with calls on each of the contender's slots. Its length is
  // found by timing a short one. Both warm the device up.
  Result<Replay> prepare(const Contender& contender, const TimingOptions& options) const;
  // Returns the microseconds for each call of one replay, measured with events.
  Result<double> time(const Replay& replay) const;

 private:
  Replayer(const GpuSession& gpu, Event start, Event stop)
      : gpu_(&gpu), start_(std::move(start)), stop_(std::move(stop)) {}

  const GpuSession* gpu_;
  Event start_;
  Event stop_;
};

// Returns the timings in the order of the contenders.
Result<std::vector<Timing>> measure(const GpuSession& gpu, const std::vector<Contender>& contenders,
                                    const TimingOptions& options);

}  // namespace octile
