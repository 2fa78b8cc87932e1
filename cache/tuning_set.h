// Holds the known records of any number of files and finds those that match a query.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cache/tuning_record.h"

namespace octile::cache {

// How well a record matches, best first. If no record matches, lookup() returns no hit.
enum class TuningMatch {
  kExact,       // problem, bucket, device name and SM count are equal
  kNearBucket,  // device and problem are equal, the bucket lies within a factor of two
  // Device and bucket are equal, every extent lies within 25 % and everything else is equal.
  kNearShape,
  kOtherDevice,  // problem and bucket are equal
};
std::string_view name_of(TuningMatch match);  // "exact", "near bucket", "near shape", ...

struct TuningQuery {
  std::string_view problem;  // canonical text, '?' for the token count
  std::int64_t bucket = 0;   // largest token count of the bucket
  std::string_view device;
  int sm_count = 0;
};

struct TuningHit {
  const TuningRecord* record = nullptr;  // valid as long as the set
  TuningMatch match = TuningMatch::kExact;
  std::string_view origin;  // the name given to add()
};

class TuningSet {
 public:
  // Adds a source; sources are added in order of precedence. If records of one source share
  // problem, bucket, device and SM count, the last one counts. If those of several sources do,
  // lookup() returns the first source's first: the caller may find that it cannot be used.
  void add(std::vector<TuningRecord> records, std::string origin);

  // Returns all matching records, best first. The order depends only on the records:
  // - exact matches;
  // - near token counts by the ratio of the buckets; of equal ratios the larger bucket first,
  //   because a large tile wastes less on few tokens than a small one on many;
  // - near extents by the product of their ratios, then by text;
  // - other devices by name and SM count;
  // - equal ones by the order of their sources.
  std::vector<TuningHit> lookup(const TuningQuery& query) const;

  // Returns the records whose winners are worth timing for the query, although few of them may
  // serve it untimed, best first:
  // - those of the problem on this device: its own, then the other buckets' within a factor of
  //   four, in the order of lookup();
  // - those of the bucket on this device whose problem differs in one extent, by a ratio of at most
  //   eight, as a fused projection differs from its parts: the smallest ratio first;
  // - those of the problem and bucket on other devices.
  std::vector<TuningHit> relatives(const TuningQuery& query) const;

  // Returns the sources in the order they were added, each with the number of its records that no
  // earlier source precedes.
  struct Source {
    std::string origin;
    std::size_t records = 0;
  };
  const std::vector<Source>& sources() const { return sources_; }

  // Returns the XXH3-128 of the answers of lookup(): for every problem, bucket, device and SM count
  // the winners' configurations, the first source's first. Equal digests mean equal choices,
  // wherever the records are; times, dates and further fields do not count.
  std::string digest() const;

 private:
  struct Entry {
    TuningRecord record;
    std::vector<std::int64_t> extents;  // numbers from the problem's text
    std::size_t source = 0;
  };
  struct Ranked;
  // Returns the hits of `rank`, which returns nothing for an entry that does not match, best first.
  std::vector<TuningHit> ranked(std::string_view problem, const auto& rank) const;

  std::vector<Entry> entries_;
  std::vector<Source> sources_;
  std::unordered_set<std::string> keys_;  // problem, bucket, device and SM count
  // Maps the problem's text without its extents to the entries that can match.
  std::unordered_map<std::string, std::vector<std::size_t>> by_kind_;
};

}  // namespace octile::cache
