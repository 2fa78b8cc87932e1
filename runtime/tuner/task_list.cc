#include "runtime/tuner/task_list.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace octile::tuner {

void TaskList::add(const Problem& problem, std::span<const std::int64_t> counts) {
  auto& known = known_[octile::to_text(problem)];
  for (const std::int64_t count : counts)
    if (known.insert(count).second) tasks_.push_back({problem, count});
}

std::vector<TuningTask> TaskList::longest_first(const DeviceSpec& device) && {
  std::vector<std::pair<double, std::size_t>> order;
  for (const TuningTask& task : tasks_) order.emplace_back(floor_us(task, device), order.size());
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [](const auto& one) { return one.first; });
  std::vector<TuningTask> sorted;
  sorted.reserve(tasks_.size());
  for (const auto& [us, place] : order) sorted.push_back(std::move(tasks_[place]));
  return sorted;
}

}  // namespace octile::tuner
