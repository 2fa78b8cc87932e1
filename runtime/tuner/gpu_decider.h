// The Decider of products and quantisers on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tuner/run.h"
#include "runtime/families/gemm/bench.h"
#include "runtime/families/quantize/bench.h"

namespace octile::tuner {

struct GpuDeciderOptions {
  ShortlistOptions shortlist;
  RaceOptions race;
  std::uint64_t seed = 1;  // of the random operands
  // Times other implementations of a product beside the candidates given, on the bench's slots:
  // what they are called, and microseconds. null: none. Never asked about quantisers.
  using Baselines = std::vector<std::pair<std::string, double>>;
  std::function<Result<Baselines>(const GemmProblem&, std::int64_t tokens, const GemmBench&,
                                  std::span<const int> beside)>
      baselines;
  double baseline_share = 0.15;  // of a task's budget, kept for them
};

class GpuDecider final : public Decider {
 public:
  // The workshop outlives it.
  GpuDecider(TunerContext& shop, GpuDeciderOptions options)
      : shop_(shop), options_(std::move(options)) {}

  void expect(const TuningTask& task) override;
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override;

  // What decide() measured last, kept for who wants to go on with the winner; null before.
  const GpuBench* bench() const { return bench_.get(); }
  // The same where it was of that family, else null.
  const GemmBench* gemm_bench() const { return dynamic_cast<const GemmBench*>(bench_.get()); }
  const QuantizeBench* quantize_bench() const {
    return dynamic_cast<const QuantizeBench*>(bench_.get());
  }
  int winner() const { return winner_; }

 private:
  Exploration exploration_of(const TuningTask& task);
  Status open_bench(const TuningTask& task, std::vector<Ranked> candidates);
  Status add_baselines(const TuningTask& task, Decision& decision);

  TunerContext& shop_;
  const GpuDeciderOptions options_;
  std::vector<std::pair<TuningTask, Exploration>> expected_;  // not decided yet
  std::unique_ptr<GpuBench> bench_;
  int winner_ = 0;
};

}  // namespace octile::tuner
