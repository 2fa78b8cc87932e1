#include "runtime/tuner/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "runtime/engine/choice.h"

namespace octile::tuner {
namespace {

class TaskRun {
 public:
  TaskRun(const std::vector<TuningTask>& tasks, const DeviceSpec& device, Decider& decider,
          const cache::TuningFile* file, const RunOptions& options)
      : tasks_(tasks), device_(device), decider_(decider), file_(file), options_(options) {}

  Result<RunResult> run() {
    if (Status ok = take_over_decided(); !ok) return tl::unexpected<Error>(ok.error());
    plan();
    if (Status ok = decide_open(); !ok) return tl::unexpected<Error>(ok.error());
    std::erase_if(open_, [this](std::size_t i) {
      return result_.decisions[i].outcome != Outcome::kOutOfTime;
    });
    if (Status ok = decide_open(); !ok) return tl::unexpected<Error>(ok.error());
    result_.stopped = stopped();
    result_.undecided = static_cast<int>(
        std::count_if(result_.decisions.begin(), result_.decisions.end(),
                      [](const Decision& decision) { return !decision.decided(); }));
    return std::move(result_);
  }

 private:
  bool stopped() const { return options_.stopped && options_.stopped(); }

  // Takes over the file's decisions and notes which tasks are left.
  Status take_over_decided() {
    std::vector<cache::TuningRecord> known;
    if (file_ != nullptr && !options_.force) {
      auto lines = file_->read();
      if (!lines) return fail(ErrorCode::kInvalidArgument, lines.error().sentence);
      known = std::move(lines->records);
    }
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const cache::TuningRecord* record = find_decided(known, tasks_[i], device_);
      result_.resumed.push_back(record != nullptr);
      if (record != nullptr) {
        decider_.learn(*record);
        result_.decisions.push_back(decision_of(tasks_[i], *record));
      } else {
        open_.push_back(i);
        result_.decisions.emplace_back().task = tasks_[i];
      }
    }
    return {};
  }

  std::vector<double> needs() const {
    std::vector<TuningTask> open;
    for (const std::size_t i : open_) open.push_back(tasks_[i]);
    return needed_seconds(open, device_, options_.shortlist, options_.compile_threads);
  }

  void plan() {
    const std::vector<double> all = needs();
    RunPlan plan{tasks_.size(), open_.size(), std::accumulate(all.begin(), all.end(), 0.0), 0};
    plan.budget_seconds = options_.budget_seconds.value_or(plan.needed_seconds);
    if (options_.planned) options_.planned(plan);
    budget_.emplace(options_.clock, plan.budget_seconds, options_.stopped);
  }

  Status decide_open() {
    const Allotment allotment(needs());
    if (!open_.empty() && budget_->left() > 0) decider_.expect(tasks_[open_.front()]);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (stopped()) break;
      if (Status ok = decide(i, allotment.share(*budget_, i)); !ok) return ok;
    }
    return {};
  }

  Status decide(std::size_t at, const Budget& share) {
    const std::size_t index = open_[at];
    const TuningTask& task = tasks_[index];
    if (share.left() <= 0) return {};
    if (options_.began) options_.began(task, *budget_);
    const double began = budget_->now();
    if (at + 1 < open_.size()) decider_.expect(tasks_[open_[at + 1]]);
    auto decision = decider_.decide(task, share);
    if (!decision) return tl::unexpected<Error>(decision.error());
    decision->seconds = budget_->now() - began;
    if (decision->decided() && file_ != nullptr) {
      const auto appended = file_->append(decision->record);
      if (!appended)
        return fail(ErrorCode::kInternal, fmt::format("the decision on {} cannot be kept: {}",
                                                      to_text(task), appended.error().sentence));
    }
    if (decision->decided()) decider_.learn(decision->record);
    if (options_.ended) options_.ended(*decision);
    result_.decisions[index] = std::move(*decision);
    return {};
  }

  const std::vector<TuningTask>& tasks_;
  const DeviceSpec& device_;
  Decider& decider_;
  const cache::TuningFile* file_;
  const RunOptions& options_;
  std::optional<Budget> budget_;   // once the run is planned
  std::vector<std::size_t> open_;  // indexes of tasks
  RunResult result_;
};

}  // namespace

const cache::TuningRecord* find_decided(const std::vector<cache::TuningRecord>& records,
                                        const TuningTask& task, const DeviceSpec& device) {
  const cache::TuningRecord key = record_key(task, device);
  const auto found =
      std::find_if(records.rbegin(), records.rend(), [&](const cache::TuningRecord& record) {
        return record.problem == key.problem && record.bucket == key.bucket &&
               record.tokens == key.tokens && record.device == key.device &&
               record.sm_count == key.sm_count;
      });
  return found == records.rend() ? nullptr : &*found;
}

Decision decision_of(const TuningTask& task, const cache::TuningRecord& record) {
  Decision decision;
  decision.task = task;
  decision.record = record;
  decision.outcome = record.gain > 1 ? Outcome::kTuned : Outcome::kDefaultStays;
  return decision;
}

std::vector<double> needed_seconds(const std::vector<TuningTask>& tasks, const DeviceSpec& device,
                                   const ShortlistOptions& shortlist, int compile_threads) {
  const auto& [liked, different, liked_beside, different_beside] = shortlist;
  std::vector<double> needs;
  std::unordered_set<std::string> problems;
  for (const TuningTask& task : tasks) {
    // A problem's first count has no neighbour whose winner is known.
    const bool is_first = problems.insert(tuning_text(task.problem)).second;
    const int candidates = is_first ? liked + different : liked_beside + different_beside;
    needs.push_back(needed_seconds({candidates, floor_us(task, device), compile_threads}));
  }
  return needs;
}

Result<RunResult> run_tasks(const std::vector<TuningTask>& tasks, const DeviceSpec& device,
                            Decider& decider, const cache::TuningFile* file,
                            const RunOptions& options) {
  return TaskRun(tasks, device, decider, file, options).run();
}

}  // namespace octile::tuner
