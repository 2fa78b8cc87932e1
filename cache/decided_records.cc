#include "cache/decided_records.h"

#include <fmt/format.h>

#include <utility>

namespace octile::cache {
namespace {

std::string place_key(const TuningRecord& r) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", r.problem, r.bucket, r.tokens, r.device, r.sm_count);
}

}  // namespace

DecidedRecords::DecidedRecords(std::vector<TuningRecord> records) : records_(std::move(records)) {
  for (std::size_t i = 0; i < records_.size(); ++i) places_[place_key(records_[i])].push_back(i);
}

const TuningRecord* DecidedRecords::find(const TuningRecord& question, std::string_view run) const {
  const auto found = places_.find(place_key(question));
  if (found == places_.end()) return nullptr;
  for (auto place = found->second.rbegin(); place != found->second.rend(); ++place)
    if (run.empty() || records_[*place].run == run) return &records_[*place];
  return nullptr;
}

}  // namespace octile::cache
