#include "cache/tuning_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace octile::cache {
namespace {

// The extents of a problem are the fields with these names whose value is a number.
constexpr std::array<std::string_view, 5> kExtentNames{"m", "n", "k", "rows", "cols"};

std::optional<std::int64_t> extent_of(std::string_view name, std::string_view value) {
  if (std::ranges::find(kExtentNames, name) == kExtentNames.end()) return std::nullopt;
  std::int64_t extent = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), extent);
  if (error != std::errc() || end != value.data() + value.size()) return std::nullopt;
  return extent;
}

// "gemm m=? n=7168 k=2048 d=bf16" has the kind "gemm m=? n=# k=# d=bf16" and the extents 7168 and
// 2048. A '#' of the text itself is doubled: problems of one kind have as many extents with any
// text in a record.
struct SplitProblem {
  std::string kind;
  std::vector<std::int64_t> extents;
};

SplitProblem split(std::string_view problem) {
  SplitProblem parts;
  while (!problem.empty()) {
    const std::string_view word = problem.substr(0, problem.find(' '));
    problem.remove_prefix(std::min(word.size() + 1, problem.size()));
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view value = word.substr(std::min(equals + 1, word.size()));
    const auto extent = extent_of(word.substr(0, equals), value);
    if (extent) parts.extents.push_back(*extent);
    parts.kind += parts.kind.empty() ? "" : " ";
    for (const char c : extent ? word.substr(0, equals) : word)
      parts.kind.append(c == '#' ? 2 : 1, c);
    if (extent) parts.kind += "=#";
  }
  return parts;
}

// Returns the product of the ratios, each of the larger by the smaller extent, or empty if one
// ratio exceeds 1.25.
std::optional<double> distance(const std::vector<std::int64_t>& a,
                               const std::vector<std::int64_t>& b) {
  double product = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto small = static_cast<double>(std::min(a[i], b[i]));
    const auto large = static_cast<double>(std::max(a[i], b[i]));
    if (small == large) continue;
    if (small <= 0 || large > 1.25 * small) return std::nullopt;
    product *= large / small;
  }
  return product;
}

// Returns the ratio of the larger number to the smaller, or empty if it exceeds `most`. The
// comparison multiplies neither, because a file may hold any number and that might overflow.
std::optional<double> ratio(std::int64_t a, std::int64_t b, std::int64_t most) {
  const std::int64_t small = std::min(a, b);
  const std::int64_t large = std::max(a, b);
  if (small < 1 || large / most + (large % most != 0 ? 1 : 0) > small) return std::nullopt;
  return static_cast<double>(large) / static_cast<double>(small);
}

// Returns the ratio of the one extent that differs, or empty if several do or the ratio exceeds
// eight.
std::optional<double> one_apart(const std::vector<std::int64_t>& a,
                                const std::vector<std::int64_t>& b) {
  constexpr std::int64_t kMost = 8;  // a fused projection over the narrowest of its parts
  std::optional<double> apart;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (apart) return std::nullopt;
    apart = ratio(a[i], b[i], kMost);
    if (!apart) return std::nullopt;
  }
  return apart;
}

std::string key_of(const TuningRecord& r) {
  return fmt::format("{}\n{}\n{}\n{}", r.problem, r.bucket, r.device, r.sm_count);
}

}  // namespace

std::string_view name_of(TuningMatch match) {
  switch (match) {
    case TuningMatch::kExact:
      return "exact";
    case TuningMatch::kNearBucket:
      return "near bucket";
    case TuningMatch::kNearShape:
      return "near shape";
    case TuningMatch::kOtherDevice:
      return "other device";
  }
  return "unknown";
}

// A hit with its sort key.
struct TuningSet::Ranked {
  TuningHit hit;
  std::size_t source = 0;
  double apart = 0;

  auto order() const {
    const TuningRecord& r = *hit.record;
    // The ratios are of positive numbers, so no NaN occurs and the order is strict.
    return std::tuple(hit.match, apart, -r.bucket, std::string_view(r.problem),
                      std::string_view(r.device), r.sm_count, source);
  }
};

void TuningSet::add(std::vector<TuningRecord> records, std::string origin) {
  const std::size_t source = sources_.size();
  sources_.push_back({std::move(origin), 0});
  std::unordered_map<std::string, std::size_t> own;  // maps a key to this source's entry
  for (TuningRecord& record : records) {
    const auto [known, is_new] = own.emplace(key_of(record), entries_.size());
    if (!is_new) {
      entries_[known->second].record = std::move(record);
      continue;
    }
    SplitProblem parts = split(record.problem);
    by_kind_[parts.kind].push_back(entries_.size());
    if (keys_.insert(known->first).second) ++sources_[source].records;
    entries_.push_back({std::move(record), std::move(parts.extents), source});
  }
}

std::vector<TuningHit> TuningSet::ranked(std::string_view problem, const auto& rank) const {
  const SplitProblem wanted = split(problem);
  const auto kind = by_kind_.find(wanted.kind);
  if (kind == by_kind_.end()) return {};
  std::vector<Ranked> all;
  for (const std::size_t index : kind->second) {
    const Entry& entry = entries_[index];
    Ranked found{{&entry.record, TuningMatch::kExact, sources_[entry.source].origin}, entry.source};
    if (rank(entry, wanted.extents, found)) all.push_back(found);
  }
  std::ranges::sort(all, {}, &Ranked::order);
  std::vector<TuningHit> hits;
  hits.reserve(all.size());
  for (const Ranked& one : all) hits.push_back(one.hit);
  return hits;
}

std::vector<TuningHit> TuningSet::lookup(const TuningQuery& query) const {
  const auto rank = [&](const Entry& entry, const std::vector<std::int64_t>& extents,
                        Ranked& found) {
    const TuningRecord& r = entry.record;
    const bool same_device = r.device == query.device && r.sm_count == query.sm_count;
    const bool same_bucket = r.bucket == query.bucket;
    if (entry.extents == extents) {
      if (same_bucket) {
        if (!same_device) found.hit.match = TuningMatch::kOtherDevice;
        return true;
      }
      const auto apart = ratio(r.bucket, query.bucket, 2);
      if (!same_device || !apart) return false;
      found.hit.match = TuningMatch::kNearBucket;
      found.apart = *apart;
      return true;
    }
    if (!same_device || !same_bucket) return false;
    const auto apart = distance(entry.extents, extents);
    if (!apart) return false;
    found.hit.match = TuningMatch::kNearShape;
    found.apart = *apart;
    return true;
  };
  return ranked(query.problem, rank);
}

std::vector<TuningHit> TuningSet::relatives(const TuningQuery& query) const {
  const auto rank = [&](const Entry& entry, const std::vector<std::int64_t>& extents,
                        Ranked& found) {
    constexpr std::int64_t kFarthestBucket = 4;
    const TuningRecord& r = entry.record;
    const bool same_problem = entry.extents == extents;
    const bool same_bucket = r.bucket == query.bucket;
    if (r.device != query.device || r.sm_count != query.sm_count) {
      found.hit.match = TuningMatch::kOtherDevice;
      return same_problem && same_bucket;
    }
    if (same_problem && same_bucket) return true;
    if (!same_problem && !same_bucket) return false;
    const auto apart = same_problem ? ratio(r.bucket, query.bucket, kFarthestBucket)
                                    : one_apart(entry.extents, extents);
    if (!apart) return false;
    found.hit.match = same_problem ? TuningMatch::kNearBucket : TuningMatch::kNearShape;
    found.apart = *apart;
    return true;
  };
  return ranked(query.problem, rank);
}

std::string TuningSet::digest() const {
  // A source has a key once, and sources are in order of precedence.
  std::map<std::string, std::vector<std::string_view>> winners;
  for (const Entry& entry : entries_) {
    auto& known = winners[key_of(entry.record)];
    const std::string_view config = entry.record.winner.config;
    if (std::ranges::find(known, config) == known.end()) known.push_back(config);
  }
  std::string text;
  for (const auto& [key, configs] : winners)
    text += fmt::format("{}\n{} winners\n{}\n", key, configs.size(), fmt::join(configs, "\n"));
  return digest_hex(text);
}

}  // namespace octile::cache
