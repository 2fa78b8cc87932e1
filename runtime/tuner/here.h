// Searches inside a running program: by a thread of the library handle, shared with the processes
// that use its folder. Plans use the decisions at once. OCTILE_TUNING=prepare has every prepare
// search like this: environment_tuning() of runtime/base/environment.h reads it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/plan.h"
#include "runtime/tuner/run.h"

namespace octile::tuner {

// Makes what decides. It is called in the thread that searches.
using MakeDecider = std::function<Result<std::unique_ptr<Decider>>()>;

struct SharedFolder {
  std::string path;  // empty: there is none
  // Keeps a decision. It is called before others have the turn of its question.
  std::function<Status(const cache::TuningRecord&)> keep;
  bool force = false;  // decide also what is decided
};

// Decides the tasks in a thread of its own, once no other search of the library runs. It waits for
// that within the budget if the options name one, and until they say to stop. Errors: those of
// run_tasks, and of making the decider.
Result<RunResult> tune_here(Library& library, const DeviceSpec& device,
                            const std::vector<TuningTask>& tasks, const MakeDecider& make_decider,
                            const SharedFolder& folder, const RunOptions& options);

// How plans are searched for.
struct PlanTuning {
  std::optional<double> seconds;  // nothing: what the tasks need
  MakeDecider make_decider;
  Clock clock = steady_clock();
};

// Returns the questions of the ranges: the largest token count of each bucket that no exact record
// serves, of problems that a search has operands for; the longest first, and each once.
std::vector<TuningTask> open_tasks(Library& library, std::span<const Plan::Range> ranges);

// Searches the open tasks of ranges of one device, which is live or named, keeps the decisions in
// the library's records, and has the plans choose again when they are next prepared. Errors: as
// tune_here.
Status tune_plans(Library& library, std::span<const Plan::Range> ranges, const PlanTuning& tuning);

// Does the same in the background of the plan, and prepares each bucket as soon as it is decided.
// Buckets that are left are dropped when the plan is destroyed.
void tune_plan_later(Library& library, const Plan::Range& range, PlanTuning tuning);

}  // namespace octile::tuner
