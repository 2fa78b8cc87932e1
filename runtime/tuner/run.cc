#include "runtime/tuner/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "runtime/engine/choice.h"
#include "runtime/measure/timing.h"
#include "runtime/prove/families.h"

namespace octile::tuner {
namespace {

int count_undecided(const std::vector<Decision>& decisions) {
  return static_cast<int>(std::ranges::count_if(
      decisions, [](const Decision& decision) { return !decision.decided(); }));
}

Decision too_large(const TuningTask& task) {
  Decision decision;
  decision.task = task;
  decision.outcome = Outcome::kTooLarge;
  return decision;
}

tl::unexpected<Error> cannot_share(const cache::IoError& error) {
  return fail(ErrorCode::kFile, fmt::format("the run cannot be shared: {}", error.sentence));
}

class TaskRun {
 public:
  TaskRun(const std::vector<TuningTask>& tasks, const DeviceSpec& device, Decider& decider,
          const RunOptions& options)
      : tasks_(tasks),
        device_(device),
        decider_(decider),
        options_(options),
        shared_(options.shared) {}

  Result<RunResult> run() {
    Status ok = take_over_decided();
    if (ok) {
      plan();
      ok = decide_all();
    }
    if (shared_ != nullptr) shared_->let_go();
    if (!ok) return tl::unexpected<Error>(ok.error());
    result_.stopped = stopped();
    result_.undecided = count_undecided(result_.decisions);
    return std::move(result_);
  }

 private:
  // Between two looks at what other processes have done.
  static constexpr double kPauseSeconds = 0.2;

  bool stopped() const { return options_.stopped && options_.stopped(); }

  // Takes over the decisions that are kept and notes which tasks are left.
  Status take_over_decided() {
    if (shared_ != nullptr) {
      const auto read = shared_->refresh();
      if (!read) return fail(ErrorCode::kInvalidArgument, read.error().sentence);
    }
    result_ = resumed_run(tasks_, [&](const TuningTask& task) {
      return shared_ != nullptr ? shared_->decided(record_key(task, device_)) : nullptr;
    });
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (result_.resumed[i]) {
        decider_.learn(result_.decisions[i].record);
      } else {
        open_.push_back(i);
      }
    }
    return {};
  }

  std::vector<NeededSeconds> needs() const {
    std::vector<TuningTask> open;
    for (const std::size_t i : open_) open.push_back(tasks_[i]);
    return needs_of(open, device_, options_.shortlist, options_.compile_threads);
  }

  void plan() {
    RunPlan plan{tasks_.size(), open_.size(), seconds_of_run(needs()), 0};
    plan.budget_seconds = options_.budget_seconds.value_or(plan.needed_seconds);
    if (options_.planned) options_.planned(plan);
    Clock clock = options_.clock;
    if (!options_.budget_seconds)
      clock = [this] { return options_.clock() - decider_.seconds_waited(); };
    budget_ = std::make_unique<Budget>(clock, plan.budget_seconds, [this] { return stopped(); });
  }

  Status decide_all() {
    if (Status ok = decide_open(); !ok) return ok;
    const std::unordered_set<std::size_t> others(others_.begin(), others_.end());
    std::erase_if(open_, [&](std::size_t i) {
      return result_.decisions[i].outcome != Outcome::kOutOfTime || others.contains(i);
    });
    if (Status ok = decide_open(); !ok) return ok;
    while (!others_.empty() && budget_->left() > 0) {
      open_ = std::exchange(others_, {});
      const std::size_t before = open_.size();
      if (Status ok = decide_open(); !ok) return ok;
      if (others_.size() == before) options_.pause(kPauseSeconds);
    }
    return {};
  }

  // Decides the open tasks that this process gets, each announced while the one before is decided.
  Status decide_open() {
    std::vector<double> seconds;
    for (const NeededSeconds& need : needs()) seconds.push_back(need.all());
    const Allotment allotment(std::move(seconds));
    auto next = take_from(0);
    while (next && !stopped()) {
      const std::optional<std::size_t> place = *next;
      if (!place) break;
      const std::size_t at = *place;
      const Budget share = allotment.share(*budget_, at);
      if (share.left() <= 0) break;
      if (options_.began) options_.began(tasks_[open_[at]], *budget_);
      const double began = budget_->now();
      next = take_from(at + 1);
      if (const auto after = next.value_or(std::nullopt)) foresee_from(*after + 1);
      if (Status ok = decide(open_[at], share, began); !ok) return ok;
    }
    return next.map([](const auto&) {});
  }

  // Returns the first open task from a place on that is this process' to decide, and announces it.
  // Notes what others have decided or are deciding. None once the time is up.
  Result<std::optional<std::size_t>> take_from(std::size_t at) {
    using Taken = cache::SharedTuning::Taken;
    if (shared_ != nullptr) {
      if (const auto read = shared_->refresh(); !read) return cannot_share(read.error());
    }
    for (; at < open_.size() && budget_->left() > 0; ++at) {
      if (shared_ == nullptr) return announced(at);
      const cache::TuningRecord key = record_key(tasks_[open_[at]], device_);
      const auto taken = shared_->take(key);
      if (!taken) return cannot_share(taken.error());
      if (*taken == Taken::kMine) return announced(at);
      if (*taken == Taken::kTakenByAnother) others_.push_back(open_[at]);
      if (*taken == Taken::kDecided) adopt(open_[at], *shared_->decided(key));
    }
    return std::optional<std::size_t>();
  }

  // Announces tasks so far ahead that idle cores find work.
  void foresee_from(std::size_t at) {
    constexpr std::size_t kAhead = 32;
    const std::size_t end = std::min(open_.size(), at + kAhead);
    for (; at < end; ++at) {
      if (foreseen_.insert(open_[at]).second) decider_.foresee(tasks_[open_[at]]);
    }
  }

  std::optional<std::size_t> announced(std::size_t at) {
    decider_.expect(tasks_[open_[at]]);
    return at;
  }

  // Takes over a decision of another process.
  void adopt(std::size_t index, const cache::TuningRecord& record) {
    decider_.learn(record);
    result_.decisions[index] = decision_of(tasks_[index], record);
    result_.elsewhere[index] = true;
    if (options_.found) options_.found(result_.decisions[index]);
  }

  Status decide(std::size_t index, const Budget& share, double began) {
    auto decision = decider_.decide(tasks_[index], share);
    if (!decision) {
      if (decision.error().code != ErrorCode::kOutOfMemory)
        return tl::unexpected<Error>(decision.error());
      decision = too_large(tasks_[index]);  // others may fit
    }
    decision->seconds = budget_->now() - began;
    if (decision->decided()) {
      if (const Status kept = keep(decision->record); !kept)
        return fail(kept.error().code, fmt::format("the decision on {} cannot be kept: {}",
                                                   to_text(tasks_[index]), kept.error().message));
      decider_.learn(decision->record);
    } else if (shared_ != nullptr && decision->outcome != Outcome::kOutOfTime) {
      shared_->fail(record_key(tasks_[index], device_));
    }
    if (options_.ended) options_.ended(*decision);
    result_.decisions[index] = std::move(*decision);
    return {};
  }

  Status keep(cache::TuningRecord& record) {
    if (shared_ != nullptr) {
      record.run = shared_->run();
      if (shared_->is_decided_twice(record)) ++result_.decided_twice;
    }
    if (options_.keep) {
      if (Status kept = options_.keep(record); !kept) return kept;
    } else if (shared_ != nullptr) {
      const auto kept = shared_->append(record);
      if (!kept) return fail(ErrorCode::kFile, kept.error().sentence);
    }
    if (shared_ != nullptr) shared_->give_back(record);
    return {};
  }

  const std::vector<TuningTask>& tasks_;
  const DeviceSpec& device_;
  Decider& decider_;
  const RunOptions& options_;
  cache::SharedTuning* const shared_;
  std::unique_ptr<Budget> budget_;   // once the run is planned
  std::vector<std::size_t> open_;    // indexes of tasks
  std::vector<std::size_t> others_;  // of those whose turns other processes have
  std::unordered_set<std::size_t> foreseen_;
  RunResult result_;
};

}  // namespace

Decision decision_of(const TuningTask& task, const cache::TuningRecord& record) {
  Decision decision;
  decision.task = task;
  decision.record = record;
  decision.outcome = record.gain > 1 ? Outcome::kTuned : Outcome::kDefaultStays;
  return decision;
}

std::vector<NeededSeconds> needs_of(const std::vector<TuningTask>& tasks, const DeviceSpec& device,
                                    const ShortlistOptions& shortlist, int compile_threads) {
  const auto& [liked, different, liked_beside, different_beside] = shortlist;
  std::vector<NeededSeconds> needs;
  std::unordered_set<std::string> problems;
  for (const TuningTask& task : tasks) {
    // A problem's first count has no neighbour whose winner is known.
    const bool is_first = problems.insert(tuning_text(task.problem)).second;
    const int candidates = is_first ? liked + different : liked_beside + different_beside;
    const std::int64_t bytes = bytes_moved(task.problem, task.tokens);
    needs.push_back(
        needed_seconds({candidates, floor_us(task, device), rotation_slots(device, bytes),
                        static_cast<double>(bytes), compile_threads}));
  }
  return needs;
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

RunResult resumed_run(const std::vector<TuningTask>& tasks,
                      const std::function<const cache::TuningRecord*(const TuningTask&)>& decided) {
  RunResult result;
  for (const TuningTask& task : tasks) {
    const cache::TuningRecord* record = decided(task);
    result.resumed.push_back(record != nullptr);
    Decision& decision = result.decisions.emplace_back();
    decision.task = task;
    if (record != nullptr) decision = decision_of(task, *record);
  }
  result.elsewhere.resize(tasks.size());
  result.undecided = count_undecided(result.decisions);
  return result;
}

Result<RunResult> run_tasks(const std::vector<TuningTask>& tasks, const DeviceSpec& device,
                            Decider& decider, const RunOptions& options) {
  return TaskRun(tasks, device, decider, options).run();
}

}  // namespace octile::tuner
