#include "runtime/tuner/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace octile::tuner {
namespace {

class TaskRun {
 public:
  TaskRun(const std::vector<TuningTask>& tasks, const DeviceSpec& device, Decider& decider,
          const cache::TuningFile* file, const RunOptions& options)
      : tasks_(tasks),
        device_(device),
        decider_(decider),
        file_(file),
        options_(options),
        budget_(options.clock, options.budget_seconds, options.stopped) {}

  Result<RunResult> run() {
    if (Status ok = find_decided(); !ok) return tl::unexpected<Error>(ok.error());
    const Allotment allotment(values());
    if (!open_.empty()) decider_.expect(tasks_[open_.front()]);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (stopped()) break;
      if (Status ok = decide(i, allotment.share(budget_, i)); !ok)
        return tl::unexpected<Error>(ok.error());
    }
    result_.stopped = stopped();
    result_.undecided = static_cast<int>(
        std::count_if(result_.decisions.begin(), result_.decisions.end(),
                      [](const Decision& decision) { return !decision.decided(); }));
    return std::move(result_);
  }

 private:
  bool stopped() const { return options_.stopped && options_.stopped(); }

  // Takes over the file's decisions and notes which tasks are left.
  Status find_decided() {
    std::vector<cache::TuningRecord> known;
    if (file_ != nullptr && !options_.force) {
      auto lines = file_->read();
      if (!lines) return fail(ErrorCode::kInvalidArgument, lines.error().sentence);
      known = std::move(lines->records);
    }
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      Decision decision;
      decision.task = tasks_[i];
      const cache::TuningRecord* record = find(known, tasks_[i]);
      result_.resumed.push_back(record != nullptr);
      if (record != nullptr) {
        decision.record = *record;
        decider_.learn(*record);
        decision.outcome = record->gain > 1 ? Outcome::kTuned : Outcome::kDefaultStays;
      } else {
        open_.push_back(i);
      }
      result_.decisions.push_back(std::move(decision));
    }
    return {};
  }

  // Returns the last record of exactly this token count, or null. Records of other counts in the
  // bucket do not decide the task. Neither does one that states another bucket, because no lookup
  // finds it as an exact match.
  const cache::TuningRecord* find(const std::vector<cache::TuningRecord>& known,
                                  const TuningTask& task) const {
    const cache::TuningRecord key = record_key(task, device_);
    const auto found =
        std::find_if(known.rbegin(), known.rend(), [&](const cache::TuningRecord& record) {
          return record.problem == key.problem && record.bucket == key.bucket &&
                 record.tokens == key.tokens && record.device == key.device &&
                 record.sm_count == key.sm_count;
        });
    return found == known.rend() ? nullptr : &*found;
  }

  std::vector<double> values() const {
    std::vector<double> values;
    for (const std::size_t i : open_) {
      values.push_back(value_of(floor_us(tasks_[i], device_), values.size()));
    }
    return values;
  }

  Status decide(std::size_t at, const Budget& share) {
    const std::size_t index = open_[at];
    const TuningTask& task = tasks_[index];
    if (share.left() <= 0) return {};
    if (options_.began) options_.began(task, budget_);
    const double began = budget_.now();
    if (at + 1 < open_.size()) decider_.expect(tasks_[open_[at + 1]]);
    auto decision = decider_.decide(task, share);
    if (!decision) return tl::unexpected<Error>(decision.error());
    decision->seconds = budget_.now() - began;
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
  const Budget budget_;
  std::vector<std::size_t> open_;  // indexes of tasks
  RunResult result_;
};

}  // namespace

Result<RunResult> run_tasks(const std::vector<TuningTask>& tasks, const DeviceSpec& device,
                            Decider& decider, const cache::TuningFile* file,
                            const RunOptions& options) {
  return TaskRun(tasks, device, decider, file, options).run();
}

}  // namespace octile::tuner
