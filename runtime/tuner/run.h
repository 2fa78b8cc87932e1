// A list of tasks answered within one budget, each answer kept as soon as there is one.
#pragma once

#include <functional>
#include <vector>

#include "cache/tuning_file.h"
#include "runtime/tuner/budget.h"
#include "runtime/tuner/decision.h"

namespace octile::tuner {

// Answers one task. Errors: nothing more can be measured.
class Decider {
 public:
  virtual ~Decider() = default;
  // Will be asked next: kernels may be compiled meanwhile.
  virtual void expect(const TuningTask& task) = 0;
  virtual Result<Decision> decide(const TuningTask& task, const Budget& budget) = 0;
};

struct RunOptions {
  double budget_seconds = 120;
  bool force = false;  // also what is decided already
  Clock clock = steady_clock();
  std::function<bool()> stopped;  // asked often; null: never. What is not decided then stays so
  // Called before and after each task.
  std::function<void(const TuningTask&, const Budget&)> began;
  std::function<void(const Decision&)> ended;
};

struct RunResult {
  // In the order of the tasks; of those decided before, the record that says so.
  std::vector<Decision> decisions;
  std::vector<bool> resumed;  // decided before
  bool stopped = false;
  int undecided = 0;
};

// `file`: what it has decided is not asked again, unless forced, and each decision is appended to
// it at once; null: nothing is kept. Errors: the decider's; kInvalidArgument where the file cannot
// be read; kInternal where it cannot be appended to, naming the decision that was lost.
Result<RunResult> run_tasks(const std::vector<TuningTask>& tasks,
                                    const DeviceSpec& device, Decider& decider,
                                    const cache::TuningFile* file, const RunOptions& options);

}  // namespace octile::tuner
