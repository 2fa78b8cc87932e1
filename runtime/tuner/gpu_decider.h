// The Decider on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/prove/gpu_bench.h"
#include "runtime/tuner/run.h"

namespace octile::tuner {

// Names of other implementations of a problem, and their microseconds per call.
using Baselines = std::vector<std::pair<std::string, double>>;

struct GpuDeciderOptions {
  ShortlistOptions shortlist;
  RaceOptions race;
  std::uint64_t seed = 1;  // seed of the random operands
  // Returns true for problems that have baselines; null: none has.
  std::function<bool(const Problem&)> has_baselines;
  // Times the baselines on the slots of the task's bench, beside the candidates given.
  std::function<Result<Baselines>(const TuningTask&, const GpuBench&, std::span<const int> beside)>
      time_baselines;
  double baseline_share = 0.15;  // part of a task's budget that is kept for its baselines
};

class GpuDecider final : public Decider {
 public:
  // The context outlives it.
  GpuDecider(TunerContext& context, GpuDeciderOptions options)
      : context_(context), options_(std::move(options)) {}

  void expect(const TuningTask& task) override;
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override;

  // The bench of the last decision, to go on with the winner; null before the first.
  const GpuBench* bench() const { return bench_.get(); }
  int winner() const { return winner_; }

 private:
  Exploration exploration_of(const TuningTask& task);
  bool has_baselines(const TuningTask& task) const;
  Status add_baselines(const TuningTask& task, Decision& decision);

  TunerContext& context_;
  const GpuDeciderOptions options_;
  std::vector<std::pair<TuningTask, Exploration>> expected_;  // not decided yet
  std::unique_ptr<GpuBench> bench_;
  int winner_ = 0;
};

}  // namespace octile::tuner
