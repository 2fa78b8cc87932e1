#include "runtime/tuner/shared_decider.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace octile::tuner {

HandleTurn::HandleTurn(std::mutex& mutex, Clock clock)
    : lock_(mutex, std::defer_lock), clock_(std::move(clock)) {}

bool HandleTurn::try_take() {
  if (lock_.owns_lock()) return true;
  if (!lock_.try_lock()) {
    if (!waiting_) waiting_ = clock_();
    return false;
  }
  if (waiting_) waited_ += clock_() - *waiting_;
  waiting_.reset();
  return true;
}

double HandleTurn::time_without_waiting() const {
  return (waiting_ ? *waiting_ : clock_()) - waited_;
}

SharedDecider::SharedDecider(Decider& own, const DeviceSpec& device, SharedFolder folder,
                             HandleTurn& turn)
    : own_(own),
      turn_(turn),
      device_(device),
      folder_(std::move(folder)),
      lock_(folder_.path, device.name, device.sm_count) {
  if (!folder_.path.empty()) records_.emplace(folder_.path, true);
}

bool SharedDecider::wait_for_turn(const Budget& budget) {
  constexpr double kPauseSeconds = 0.02;
  while (!turn_.try_take() || !lock_.try_take()) {
    if (budget.left() <= 0) return false;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::min(kPauseSeconds, budget.left())));
  }
  return true;
}

std::optional<Decision> SharedDecider::of_others(const TuningTask& task) {
  if (folder_.force || !records_) return std::nullopt;
  if (auto now = records_->stamps(); now != seen_) {
    auto lines = records_->read();
    if (!lines) return std::nullopt;
    theirs_ = cache::DecidedRecords(std::move(lines->records));
    seen_ = std::move(now);
  }
  const cache::TuningRecord* record = find_decided(theirs_, task, device_);
  if (record == nullptr) return std::nullopt;
  return decision_of(task, *record);
}

Result<Decision> SharedDecider::decide_alone(const TuningTask& task, const Budget& budget) {
  if (auto theirs = of_others(task)) return std::move(*theirs);
  auto decision = own_.decide(task, budget);
  if (!decision || !decision->decided() || !folder_.keep) return decision;
  if (const Status kept = folder_.keep(decision->record); !kept)
    return fail(kept.error().code, fmt::format("the decision on {} cannot be kept: {}",
                                               to_text(task), kept.error().message));
  return decision;
}

Result<Decision> SharedDecider::decide(const TuningTask& task, const Budget& budget) {
  if (!wait_for_turn(budget)) {
    Decision none;
    none.task = task;
    return none;
  }
  auto decision = decide_alone(task, budget);
  lock_.give_back();
  return decision;
}

}  // namespace octile::tuner
