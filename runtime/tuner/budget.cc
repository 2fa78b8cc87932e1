#include "runtime/tuner/budget.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

namespace octile::tuner {

Clock steady_clock() {
  return [] {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now().time_since_epoch();
    return since.count();
  };
}

Budget::Budget(Clock clock, double seconds, std::function<bool()> stopped)
    : clock_(std::move(clock)), end_(clock_() + seconds), stopped_(std::move(stopped)) {}

double Budget::left() const {
  return stopped_ && stopped_() ? 0.0 : std::max(0.0, end_ - clock_());
}

Budget Budget::part(double seconds) const { return {clock_, std::min(seconds, left()), stopped_}; }

bool wait_until(const std::function<bool()>& answer, const Budget& budget) {
  constexpr double kPauseSeconds = 0.02;
  while (!answer()) {
    const double left = budget.left();
    if (left <= 0) return false;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(kPauseSeconds, left)));
  }
  return true;
}

Allotment::Allotment(std::vector<double> needs) : needs_(std::move(needs)), to_come_(needs_) {
  std::partial_sum(to_come_.rbegin(), to_come_.rend(), to_come_.rbegin());
}

Budget Allotment::share(const Budget& all, std::size_t decision) const {
  return all.part(needs_[decision] * std::max(1.0, all.left() / to_come_[decision]));
}

NeededSeconds needed_seconds(const Effort& effort) {
  // A kernel of DeepSeek-V3's took 0.22 s of one core with NVRTC 13.0; large tiles take longer.
  constexpr double kCompile = 0.25;
  // Variants of the fastest candidates are compiled too.
  constexpr int kVariants = 6;
  // First times, laps and blocks of a usual race.
  constexpr int kMeasurements = 320;
  constexpr double kShortest = 0.9e-3;  // of a measurement; fewer of them are of all candidates
  // Candidates take half as long again as `us`, which is the least that the device needs, and more
  // while its clock is low.
  constexpr double kCall = 1.5e-6;
  // Operands, checks, baselines and the operands' quantisers: what they took beside the rest of a
  // question of DeepSeek-V3's with short calls on an H100.
  constexpr double kBeside = 0.3;
  // Making operands, and looking at the results of a candidate.
  constexpr double kMake = 0.05e-9, kLook = 3e-12;
  const double race = kMeasurements * std::max(kShortest, kCall * effort.us * effort.calls);
  return {kCompile * (effort.candidates + kVariants) / effort.compile_threads,
          race + kBeside + effort.bytes * (kMake + kLook * effort.candidates)};
}

double seconds_of_run(const std::vector<NeededSeconds>& needs) {
  if (needs.empty()) return 0;
  double builds = 0, device = 0;
  for (const NeededSeconds& need : needs) {
    builds += need.builds;
    device += need.device;
  }
  return std::max(builds, needs.front().builds + device);
}

}  // namespace octile::tuner
