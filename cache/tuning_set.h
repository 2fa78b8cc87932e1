// The records that are known, from any number of files, and the ones that fit a question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/tuning_record.h"

namespace octile::cache {

// Best first. No hit at all is the fourth answer: none.
enum class TuningMatch {
  kExact,        // problem, bucket, device name and SM count are the ones asked for
  kNear,         // the device is, and the problem at a bucket within a factor of two; or the
                 // bucket, with every extent within 25 % and everything else equal
  kOtherDevice,  // problem and bucket are: to report, not to use
};
std::string_view name_of(TuningMatch match);  // "exact", "near", "other-device"

struct TuningQuery {
  std::string_view problem;  // canonical text, '?' for the token count
  std::int64_t bucket = 0;   // its largest token count
  std::string_view device;
  int sm_count = 0;
};

struct TuningHit {
  const TuningRecord* record = nullptr;  // lives as long as the set
  TuningMatch match = TuningMatch::kExact;
  std::string_view origin;  // as given to add()
};

class TuningSet {
 public:
  // Sources in order of precedence. Of records of one problem, bucket, device and SM count the
  // source's last stands, and an earlier source's over a later one's.
  void add(std::vector<TuningRecord> records, std::string origin);

  // All that match, best first, in an order that depends on nothing but the records: exact; near in
  // the token count by the buckets' ratio, of one ratio the larger first (a large tile wastes less
  // on few tokens than a small one on many); near in the extents by the product of the ratios, then
  // by text; other devices by name and SM count.
  std::vector<TuningHit> lookup(const TuningQuery& query) const;

  // In the order they were added, with how many of their records stand.
  struct Source {
    std::string origin;
    std::size_t records = 0;
  };
  const std::vector<Source>& sources() const { return sources_; }

 private:
  struct Entry {
    TuningRecord record;
    std::vector<std::int64_t> extents;  // numbers taken out of the problem's text
    std::size_t source = 0;
  };
  struct Ranked;

  std::vector<Entry> entries_;
  std::vector<Source> sources_;
  std::unordered_map<std::string, std::size_t> by_key_;  // what a record decides about
  // By the problem's text without its extents: what can match at all.
  std::unordered_map<std::string, std::vector<std::size_t>> by_kind_;
};

}  // namespace octile::cache
