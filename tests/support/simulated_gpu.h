// A device that exists only as numbers, for tests of the tuner. Each candidate has a true time and
// is measured with noise. The clock drifts, throttles, and advances by every measurement.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/prove/bench.h"
#include "runtime/reference/synthetic.h"
#include "runtime/tuner/budget.h"

namespace octile::test {

struct SimulatedCandidate {
  double us = 10;
  double compile_seconds = 0.2;
  int spill_bytes = 0;
  std::string compile_error;      // if not empty, the candidate does not compile
  std::string wrong;              // if not empty, what the spot check says
  bool wrong_in_between = false;  // wrong only where no sample lies
  std::optional<int> variant_of = {};
};

struct SimulatedGpu {
  std::vector<SimulatedCandidate> candidates;
  std::uint64_t seed = 1;
  double noise = 0.003;         // relative standard deviation of one measurement
  double outlier_share = 0.02;  // share of measurements that take 1.5 times as long
  double drift_per_second = 0;  // relative
  double sway = 0;              // amplitude of a slow sine
  double sway_seconds = 0.5;    // period of the sine
  double measurement_seconds = 0.003;
  double spot_check_seconds = 0.001, verify_seconds = 0.003;
  int cores = 4;
  // Times in seconds between which everything takes twice as long.
  double throttled_from = 1e9, throttled_to = 1e9;
  int lost_at_measurement = -1;  // this measurement and all later ones fail
};

class SimulatedBench final : public tuner::Bench {
 public:
  // `now`: the time in seconds, which every action advances. Several successive benches share it.
  explicit SimulatedBench(SimulatedGpu gpu,
                          std::shared_ptr<double> now = std::make_shared<double>(100.0))
      : gpu_(std::move(gpu)), clock_(std::move(now)), now_(*clock_), start_(now_) {}

  tuner::Clock clock() const {
    return [clock = clock_] { return *clock; };
  }

  int candidates() const override { return static_cast<int>(gpu_.candidates.size()); }

  std::optional<int> variant_of(int candidate) const override { return at(candidate).variant_of; }

  std::string name(int candidate) const override {
    return "candidate " + std::to_string(candidate);
  }

  // A try for a device that others have takes a moment.
  bool take_device() override {
    held_ = !others_have_it || !others_have_it(now_);
    if (!held_) now_ += 0.02;
    return held_;
  }
  void give_device_back() override { held_ = false; }

  void start_builds(std::span<const int> candidates) override {
    std::vector<double> free_at(static_cast<std::size_t>(gpu_.cores), now_);
    for (const int candidate : candidates) {
      if (ready_.contains(candidate)) continue;
      auto& core = *std::min_element(free_at.begin(), free_at.end());
      core += at(candidate).compile_seconds;
      ready_[candidate] = core;
    }
  }

  std::optional<Result<tuner::BuildReport>> build(int candidate, double seconds) override {
    const double ready = ready_.at(candidate);
    if (ready > now_ && seconds > 0 && !held_) waited_without_it.push_back(now_);
    if (ready > now_ + seconds) {
      now_ += seconds;
      return std::nullopt;
    }
    now_ = std::max(now_, ready);
    const SimulatedCandidate& c = at(candidate);
    if (!c.compile_error.empty())
      return Result<tuner::BuildReport>(fail(ErrorCode::kCompileFailed, c.compile_error));
    return Result<tuner::BuildReport>(tuner::BuildReport{c.spill_bytes, 0});
  }

  Result<tuner::Verdict> spot_check(int candidate) override {
    use();
    now_ += gpu_.spot_check_seconds;
    checked.insert(candidate);
    const SimulatedCandidate& c = at(candidate);
    return c.wrong.empty() ? tuner::Verdict{} : tuner::Verdict{false, c.wrong, {}};
  }

  Result<tuner::Verdict> verify(int candidate) override {
    use();
    now_ += gpu_.verify_seconds;
    verified.insert(candidate);
    const SimulatedCandidate& c = at(candidate);
    if (!c.wrong.empty()) return tuner::Verdict{false, c.wrong, {}};
    if (first_ < 0 || c.wrong_in_between == at(first_).wrong_in_between) {
      if (first_ < 0) first_ = candidate;
      return tuner::Verdict{};
    }
    if (c.wrong_in_between) return tuner::Verdict{false, "between the samples", {}};
    first_ = candidate;
    return tuner::Verdict{true, {}, "between the samples"};
  }

  Result<double> time(int candidate) override {
    use();
    if (gpu_.lost_at_measurement >= 0 && measurements >= gpu_.lost_at_measurement)
      return fail(ErrorCode::kDeviceError, "cuEventSynchronize failed");
    const auto draw = static_cast<std::uint64_t>(measurements++);
    now_ += gpu_.measurement_seconds;
    timed.insert(candidate);
    double factor = 1 + gpu_.noise * reference::random_normal(gpu_.seed, draw);
    if (reference::random_uniform(gpu_.seed + 1, draw) < gpu_.outlier_share) factor *= 1.5;
    factor *= 1 + gpu_.drift_per_second * (now_ - start_);
    factor *= 1 + gpu_.sway * std::sin(2 * std::numbers::pi * now_ / gpu_.sway_seconds);
    throttled_ = now_ >= gpu_.throttled_from && now_ < gpu_.throttled_to;
    // Heat affects kernels differently, so a throttled comparison is worthless.
    if (throttled_) factor *= candidate % 2 == 0 ? 2.0 : 1.2;
    return at(candidate).us * factor;
  }

  DeviceTelemetry state() override { return {1800, 3200, 500, throttled_}; }

  std::set<int> checked, verified, timed;
  int measurements = 0;
  std::function<bool(double now)> others_have_it;  // the device; null: never
  std::vector<double> waited_without_it;  // when the bench waited for a compiler without the device
  int used_without_it = 0;

 private:
  void use() { used_without_it += held_ ? 0 : 1; }
  const SimulatedCandidate& at(int candidate) const {
    return gpu_.candidates[static_cast<std::size_t>(candidate)];
  }

  SimulatedGpu gpu_;
  std::shared_ptr<double> clock_;
  double& now_;
  const double start_;
  bool throttled_ = false, held_ = false;
  int first_ = -1;  // the candidate that verification compares with
  std::map<int, double> ready_;
};

}  // namespace octile::test
