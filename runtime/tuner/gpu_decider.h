// The Decider on a GPU.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/prove/gpu_bench.h"
#include "runtime/tuner/known_records.h"
#include "runtime/tuner/operand_times.h"
#include "runtime/tuner/run.h"

namespace octile::tuner {

// Other implementations of a problem, by name. `owner` holds the objects that the calls use.
struct Rivals {
  std::vector<Contender> contenders;
  std::shared_ptr<const void> owner;
};

struct GpuDeciderOptions {
  ShortlistOptions shortlist;
  RaceOptions race;
  std::uint64_t seed = 1;  // seed of the random operands
  // Returns the rivals of a task, which may use the slots of its bench; null: there are none.
  std::function<Result<Rivals>(const TuningTask&, const GpuBench&)> rivals;
  bool times_operands = false;  // also the quantisers of a GEMM's operands
  // Returns the error of a task's promotion interval, which its record gets; null, or nothing of a
  // task: it was not measured.
  std::function<std::optional<double>(const TuningTask&)> error_of;
  double beside_share = 0.15;  // part of a task's budget that is kept for timing both
};

class GpuDecider final : public Decider {
 public:
  // The context outlives it.
  GpuDecider(TunerContext& context, GpuDeciderOptions options);

  void expect(const TuningTask& task) override;
  void foresee(const TuningTask& task) override;
  void learn(const cache::TuningRecord& record) override;
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override;

  double seconds_waited() const override { return context_.seconds_waited(); }

  // The bench of the last decision, to go on with the winner; null before the first.
  const GpuBench* bench() const { return bench_.get(); }
  int winner() const { return winner_; }

 private:
  // Spaces that other threads explored ahead, by the task's text.
  struct Foreseen {
    std::mutex mutex;
    std::unordered_map<std::string, SearchSpace> spaces;
  };

  SearchSpace take_space(const TuningTask& task);
  // Times the winner, the default, the rivals and the operands' quantisers in one interleaved run.
  Status time_beside(const TuningTask& task, const Budget& budget, Decision& decision);

  TunerContext& context_;
  const GpuDeciderOptions options_;
  KnownRecords known_;
  OperandTimes operands_;
  const std::shared_ptr<Foreseen> foreseen_ = std::make_shared<Foreseen>();
  // The searches of tasks that were announced and are not decided yet.
  std::vector<std::pair<TuningTask, SearchSpace>> expected_;
  std::unique_ptr<GpuBench> bench_;
  int winner_ = 0;
};

}  // namespace octile::tuner
