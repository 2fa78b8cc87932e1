#include "runtime/tuner/known_records.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace octile::tuner {
namespace {

// Winners of each kind of match that are worth a compile and a race. Further ones are of counts and
// shapes farther away, and the cost model's own candidates follow.
constexpr int kOfEachMatch = 2;

}  // namespace

std::vector<KernelConfig> KnownRecords::winners(const TuningTask& task,
                                                const DeviceSpec& device) const {
  const std::string text = tuning_text(task.problem);
  const cache::TuningQuery query{text, bucket_upper(bucket_of(task.tokens)), device.name,
                                 device.sm_count};
  std::vector<cache::TuningHit> hits = own_.relatives(query);
  if (loaded_ != nullptr) {
    const auto more = loaded_->relatives(query);
    hits.insert(hits.end(), more.begin(), more.end());
  }
  std::ranges::stable_sort(hits, {}, &cache::TuningHit::match);
  std::vector<KernelConfig> winners;
  std::array<int, 4> taken{};  // by match
  for (const cache::TuningHit& hit : hits) {
    int& count = taken.at(static_cast<std::size_t>(hit.match));
    if (count == kOfEachMatch) continue;
    auto config = parse_config(task.problem, hit.record->winner.config);
    if (!config || rejection_reason(*config, task.problem, task.tokens, device)) continue;
    ++count;
    if (std::ranges::find(winners, *config) == winners.end()) winners.push_back(std::move(*config));
  }
  return winners;
}

std::optional<KernelConfig> KnownRecords::incumbent(const TuningTask& task,
                                                    const DeviceSpec& device) const {
  if (loaded_ == nullptr) return std::nullopt;
  Choice loaded = choose_config(task.problem, task.tokens, device, *loaded_);
  if (loaded.by != ChosenBy::kRecord) return std::nullopt;
  return std::move(loaded.config);
}

Choice KnownRecords::choose(const TuningTask& task, const DeviceSpec& device) const {
  Choice own = choose_config(task.problem, task.tokens, device, own_);
  if (own.by == ChosenBy::kRecord || loaded_ == nullptr) return own;
  Choice loaded = choose_config(task.problem, task.tokens, device, *loaded_);
  return own.by != ChosenBy::kModel && own.by <= loaded.by ? own : loaded;
}

}  // namespace octile::tuner
