// A tuning run: decides a list of tasks within one budget and keeps each decision at once. Several
// processes may share a run through a folder.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cache/decided_records.h"
#include "cache/shared_tuning.h"
#include "runtime/tuner/budget.h"
#include "runtime/tuner/decision.h"

namespace octile::tuner {

// Decides one task. Errors: nothing more can be measured.
class Decider {
 public:
  virtual ~Decider() = default;
  // Announces the task that follows, so that its kernels can be compiled meanwhile.
  virtual void expect(const TuningTask& task) = 0;
  // Announces one that follows later if no other process takes it, each once at the most.
  virtual void foresee(const TuningTask& /*task*/) {}
  // Tells of a decision, of this run or of one before, whose winner may help with others.
  virtual void learn(const cache::TuningRecord& /*record*/) {}
  virtual Result<Decision> decide(const TuningTask& task, const Budget& budget) = 0;
  // Returns the seconds that it has waited for its device, which another process had.
  virtual double seconds_waited() const { return 0; }
};

// The plan of a run.
struct RunPlan {
  std::size_t tasks = 0, open = 0;  // open: not decided before
  double needed_seconds = 0;        // of the open ones together
  double budget_seconds = 0;
};

void sleep_for(double seconds);

struct RunOptions {
  // Empty: what the open tasks need, without the time that the decider waits for its device.
  std::optional<double> budget_seconds;
  ShortlistOptions shortlist;  // as the decider has it
  int compile_threads = 1;
  Clock clock = steady_clock();
  // Called often; once it returns true, the tasks that are left stay undecided. null: never.
  std::function<bool()> stopped;
  // The folder that shares the run with other processes. null: this process is alone.
  cache::SharedTuning* shared = nullptr;
  // Keeps a decision, before others have the turn of its question. null: this process' file in the
  // folder does, if there is one.
  std::function<Status(const cache::TuningRecord&)> keep;
  std::function<void(double)> pause = sleep_for;  // waits for the others, in seconds
  // Called once, before the first task.
  std::function<void(const RunPlan&)> planned;
  // Called before and after each task.
  std::function<void(const TuningTask&, const Budget&)> began;
  std::function<void(const Decision&)> ended;
  // Called for each decision of another process, once it is seen.
  std::function<void(const Decision&)> found;
};

// Returns what each of the tasks needs, in their order.
std::vector<NeededSeconds> needs_of(const std::vector<TuningTask>& tasks, const DeviceSpec& device,
                                    const ShortlistOptions& shortlist, int compile_threads);

// Returns the decision that a record keeps.
Decision decision_of(const TuningTask& task, const cache::TuningRecord& record);

struct RunResult {
  // One decision a task, in the order of the tasks. A task decided before has its record.
  std::vector<Decision> decisions;
  std::vector<bool> resumed;    // true for tasks decided before
  std::vector<bool> elsewhere;  // true for tasks decided meanwhile by other processes
  bool stopped = false;
  int undecided = 0;
  // Tasks that other processes decided too, while this one had their turns.
  int decided_twice = 0;
};

// Returns what records have decided of the tasks, the others as undecided. `decided` returns the
// record of a task, or null.
RunResult resumed_run(const std::vector<TuningTask>& tasks,
                      const std::function<const cache::TuningRecord*(const TuningTask&)>& decided);

// Decides the tasks in their order. One that runs out of time is tried once more at the end, with
// the rest of the budget. Each decision is kept at once.
//
// In a shared run, a task that the folder has decided is not decided again. A process decides the
// tasks whose turns it gets, in their order, and then waits for those whose turns others have,
// which it takes over if they end. So every process that gets to its end has all decisions. Others
// may take at once the tasks that it leaves undecided.
//
// Errors: the decider's; kInvalidArgument if the records cannot be read; kFile if the folder
// cannot be used or written to, naming the decision that was lost.
Result<RunResult> run_tasks(const std::vector<TuningTask>& tasks, const DeviceSpec& device,
                            Decider& decider, const RunOptions& options);

}  // namespace octile::tuner
