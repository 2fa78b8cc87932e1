#include "runtime/tuner/here.h"

#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <utility>

#include "runtime/base/guarded.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/prove/families.h"
#include "runtime/tuner/task_list.h"

namespace octile::tuner {
namespace {

Result<RunResult> decide_all(Library& library, const DeviceSpec& device,
                             const std::vector<TuningTask>& tasks, const MakeDecider& make_decider,
                             const SharedFolder& folder, RunOptions options) {
  std::unique_lock turn(library.search_turn, std::defer_lock);
  // The tasks' needs are for their search. Seconds that the caller names are all that it takes.
  const Budget waiting(options.clock,
                       options.budget_seconds.value_or(std::numeric_limits<double>::infinity()),
                       options.stopped);
  if (!wait_until([&turn] { return turn.try_lock(); }, waiting)) {
    RunResult none = resumed_run(tasks, [](const TuningTask&) { return nullptr; });
    none.stopped = options.stopped && options.stopped();
    return none;
  }
  if (options.budget_seconds) options.budget_seconds = waiting.left();
  const auto decider = make_decider();
  if (!decider) return tl::unexpected<Error>(decider.error());
  std::optional<cache::SharedTuning> shared;
  if (!folder.path.empty()) {
    shared.emplace(folder.path, cache::SharedTuningOptions{.force = folder.force});
    options.shared = &*shared;
  }
  options.keep = folder.keep;
  options.compile_threads = library.workers.threads();
  return run_tasks(tasks, device, **decider, options);
}

SharedFolder own_folder(Library& library) {
  return {library.engine.options().writable_root, [&library](const cache::TuningRecord& record) {
            return library.engine.tuning_records().keep(record);
          }};
}

void log_decision(Library& library, const Decision& decision) {
  library.logger.log(
      decision.wrong.empty() ? LogLevel::kInfo : LogLevel::kWarning,
      fmt::format("search of {}: {}{}", to_text(decision.task), name_of(decision.outcome),
                  decision.decided() ? ", " + decision.record.winner.config : ""));
  for (const WrongCandidate& wrong : decision.wrong)
    library.logger.log(LogLevel::kWarning, to_text(wrong));
}

RunOptions run_options(Library& library, const PlanTuning& tuning) {
  RunOptions options;
  options.budget_seconds = tuning.seconds;
  options.clock = tuning.clock;
  options.planned = [&library](const RunPlan& plan) {
    library.logger.log(LogLevel::kInfo,
                       fmt::format("searches for {} token-count buckets need {:.0f} s and have "
                                   "{:.0f}",
                                   plan.open, plan.needed_seconds, plan.budget_seconds));
  };
  options.ended = [&library](const Decision& decision) { log_decision(library, decision); };
  return options;
}

// Adds the open questions of one range.
void add_open(const Plan::Range& range, const cache::TuningSet& records, TaskList& tasks) {
  const Plan& plan = *range.plan;
  if (plan.target().kind == TargetKind::kHost || is_empty(plan.problem())) return;
  if (!check_operands(plan.problem())) return;
  std::vector<std::int64_t> open;
  for (int bucket = bucket_of(range.hi); bucket >= bucket_of(range.lo); --bucket) {
    const std::int64_t tokens =
        plan.axis().is_dynamic() ? bucket_upper(bucket) : plan.axis().tokens;
    if (tokens < 1 || tokens > kMaxExtent) continue;
    if (choose_config(plan.problem(), tokens, plan.target().spec, records).by != ChosenBy::kRecord)
      open.push_back(tokens);
  }
  tasks.add(with_dynamic_tokens(plan.problem()), open);
}

}  // namespace

Result<RunResult> tune_here(Library& library, const DeviceSpec& device,
                            const std::vector<TuningTask>& tasks, const MakeDecider& make_decider,
                            const SharedFolder& folder, const RunOptions& options) {
  Result<RunResult> result;
  Status ran;
  // A thread of its own, which waits for its turn with an eye on the clock.
  WorkerPool searching(1);
  searching.run(1, [&](std::size_t) {
    ran = guarded([&]() -> Status {
      result = decide_all(library, device, tasks, make_decider, folder, options);
      return {};
    });
  });
  if (!ran) return tl::unexpected<Error>(ran.error());
  return result;
}

std::vector<TuningTask> open_tasks(Library& library, std::span<const Plan::Range> ranges) {
  const auto records = library.engine.records();
  TaskList tasks;
  for (const Plan::Range& range : ranges) add_open(range, *records, tasks);
  if (tasks.empty()) return {};
  return std::move(tasks).longest_first(ranges.front().plan->target().spec);
}

Status tune_plans(Library& library, std::span<const Plan::Range> ranges, const PlanTuning& tuning) {
  const std::vector<TuningTask> tasks = open_tasks(library, ranges);
  Status done;
  if (!tasks.empty()) {
    const auto result =
        tune_here(library, ranges.front().plan->target().spec, tasks, tuning.make_decider,
                  own_folder(library), run_options(library, tuning));
    if (!result) done = tl::unexpected<Error>(result.error());
  }
  // Decisions of other processes since the plans were prepared count too.
  for (const Plan::Range& range : ranges) range.plan->reconsider(range.lo, range.hi);
  return done;
}

void tune_plan_later(Library& library, const Plan::Range& range, PlanTuning tuning) {
  const auto work = [&library, lo = range.lo, hi = range.hi,
                     tuning = std::move(tuning)](const std::weak_ptr<Plan>& weak) -> Status {
    RunOptions options = run_options(library, tuning);
    options.stopped = [&weak] { return weak.expired(); };
    std::vector<TuningTask> tasks;
    DeviceSpec device;
    if (const auto plan = weak.lock()) {
      const Plan::Range open{plan.get(), lo, hi};
      tasks = open_tasks(library, {&open, 1});
      device = plan->target().spec;
    }
    if (tasks.empty()) return {};
    Status served;
    const auto serve = [&](const Decision& decision) {
      const auto plan = weak.lock();
      if (plan == nullptr || !decision.decided()) return;
      plan->reconsider(decision.task.tokens, decision.task.tokens);
      Status ok = plan->prepare(decision.task.tokens, decision.task.tokens, false);
      if (!ok && served) served = std::move(ok);
    };
    options.ended = [&](const Decision& decision) {
      log_decision(library, decision);
      serve(decision);
    };
    options.found = serve;
    const auto result = decide_all(library, device, tasks, tuning.make_decider, own_folder(library),
                                   std::move(options));
    if (!result) return tl::unexpected<Error>(result.error());
    return served;
  };
  range.plan->do_later(library.searches, work);
}

}  // namespace octile::tuner
