#include "tools/tune/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace octile::tools {
namespace {

std::string seconds_text(double seconds) {
  return seconds < 100 ? fmt::format("{:.0f} s", seconds)
                       : fmt::format("{:.0f} min {:02.0f} s", std::floor(seconds / 60),
                                     std::fmod(seconds, 60));
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

std::string plan_text(const tuner::RunPlan& plan, const std::string& where) {
  const std::string open =
      plan.open == plan.tasks
          ? fmt::format("{} question{}", plan.tasks, plan.tasks == 1 ? "" : "s")
          : fmt::format("{} of {} questions, which are not decided yet,", plan.open, plan.tasks);
  std::string need = fmt::format("{} need{} about {} on {}", open, plan.tasks == 1 ? "s" : "",
                                 seconds_text(plan.needed_seconds), where);
  if (plan.budget_seconds >= plan.needed_seconds) return need;
  return fmt::format("{}; --budget gives {}, so the lightest may stay undecided", need,
                     seconds_text(plan.budget_seconds));
}

Watch::Watch(const std::vector<Question>& questions, std::string where, ProgressMode mode)
    : questions_(questions), where_(std::move(where)), progress_(mode) {}

void Watch::planned(const tuner::RunPlan& plan) {
  all_ = plan.tasks;
  done_ = plan.tasks - plan.open;
}

void Watch::began(const tuner::TuningTask& task, double seconds_left) {
  const auto found = std::ranges::find(questions_, task, &Question::task);
  const bool has_layer = found != questions_.end() && !found->layer.empty();
  before_ = fmt::format("{} of {} done, {} at {} tokens", done_, all_,
                        has_layer ? found->layer : short_text(task.problem), task.tokens);
  behind_ = fmt::format(", {} left, {}", seconds_text(seconds_left), where_);
  progress_.step(before_ + behind_);
}

void Watch::timed(double best_us, double default_us) {
  const std::string beside =
      default_us > 0 ? fmt::format(" against the default's {:.2f}", default_us) : "";
  progress_.rename(fmt::format("{}: {:.2f} us{}{}", before_, best_us, beside, behind_));
}

}  // namespace octile::tools
