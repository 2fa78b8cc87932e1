// The Decider of products on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tuner/campaign.h"
#include "runtime/tuner/gemm_bench.h"

namespace octile::tuner {

struct GemmDeciderOptions {
  ShortlistOptions shortlist;
  RaceOptions race;
  std::uint64_t seed = 1;  // of the random operands
  // Times other implementations of the product beside the candidates given, on the bench's slots:
  // what they are called, and microseconds. null: none.
  using Baselines = std::vector<std::pair<std::string, double>>;
  std::function<Result<Baselines>(const Question&, const GemmBench&, std::span<const int> beside)>
      baselines;
  double baseline_share = 0.15;  // of a question's budget, kept for them
};

class GemmDecider final : public Decider {
 public:
  // The workshop outlives it.
  GemmDecider(GpuWorkshop& shop, GemmDeciderOptions options)
      : shop_(shop), options_(std::move(options)) {}

  void expect(const Question& question) override;
  Result<Decision> decide(const Question& question, const Budget& budget) override;

  // What decide() measured last, kept for who wants to go on with the winner; null before.
  const GemmBench* bench() const { return bench_.get(); }
  int winner() const { return winner_; }

 private:
  Exploration exploration_of(const Question& question);
  Status add_baselines(const Question& question, Decision& decision);

  GpuWorkshop& shop_;
  const GemmDeciderOptions options_;
  std::vector<std::pair<Question, Exploration>> expected_;  // not decided yet
  std::unique_ptr<GemmBench> bench_;
  int winner_ = 0;
};

}  // namespace octile::tuner
