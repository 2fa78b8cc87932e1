// Finds the records that decide a question: those of the same problem, bucket, tokens, device and
// SM count.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/tuning_record.h"

namespace octile::cache {

class DecidedRecords {
 public:
  DecidedRecords() = default;
  explicit DecidedRecords(std::vector<TuningRecord> records);

  bool empty() const { return records_.empty(); }
  // Returns the last record of a question, whose other fields are ignored, or null. With a run: the
  // last one of that run. Valid as long as this.
  const TuningRecord* find(const TuningRecord& question, std::string_view run = {}) const;

 private:
  std::vector<TuningRecord> records_;
  std::unordered_map<std::string, std::vector<std::size_t>> places_;  // by question, in order
};

}  // namespace octile::cache
