#include "runtime/engine/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "generator/core/token_buckets.h"

namespace octile {
namespace {

using cache::TuningHit;
using cache::TuningMatch;
using cache::TuningRecord;

// A record that may serve.
struct Hit {
  TuningHit of;
  // The record was timed at this bucket on this device, for the problem or for one that is tuned
  // alike. Nothing then speaks against it that the race did not measure.
  bool measured_here = false;
};

// Near buckets and near shapes are of one rank.
int rank_of(TuningMatch match) {
  return match == TuningMatch::kExact ? 0 : match == TuningMatch::kOtherDevice ? 2 : 1;
}

// Returns the records of the problem, best first. Records of the same problem without batch
// invariance follow those of their kind; usable_winner compares their numerics. Records of the
// problem that is tuned alike are near ones, after the problem's own of this bucket.
std::vector<Hit> records_for(const Problem& problem, std::int64_t tokens, const DeviceSpec& device,
                             const cache::TuningSet& records) {
  const std::int64_t bucket = bucket_upper(bucket_of(tokens));
  std::vector<Hit> hits;
  const auto add = [&](const Problem& of, bool is_alike) {
    for (TuningHit hit : records.lookup({tuning_text(of), bucket, device.name, device.sm_count})) {
      const bool measured_here = hit.match == TuningMatch::kExact;
      if (is_alike && measured_here) hit.match = TuningMatch::kNearShape;
      hits.push_back({hit, measured_here});
    }
  };
  add(problem, false);
  if (const auto free = without_invariance(problem)) add(*free, false);
  if (const auto alike = tuned_alike(without_invariance(problem).value_or(problem))) {
    add(*alike, true);
  }
  std::ranges::stable_sort(hits, {}, [](const Hit& hit) {
    return std::pair(rank_of(hit.of.match), !hit.measured_here);
  });
  return hits;
}

// Returns the winner's configuration if it is one for this problem and device.
Result<KernelConfig> usable_winner(const TuningRecord& record, const Problem& problem,
                                   std::int64_t tokens, const DeviceSpec& device) {
  auto config = parse_config(problem, record.winner.config);
  if (!config) return config;
  if (auto reason = rejection_reason(*config, problem, tokens, device))
    return fail(ErrorCode::kUnsupported, std::move(*reason));
  if (!without_invariance(problem)) return config;
  if (auto difference = numerics_difference(*config, default_config(problem, tokens, device)))
    return fail(ErrorCode::kUnsupported, std::move(*difference));
  return config;
}

// Largest predicted slowdown against the model's pick at which the winner of a near record, or of a
// sister card's, is accepted.
// The model's estimates are off by some 5 % at few tokens and 2 % above. The fastest
// configuration at half the tokens can be twice as slow at these: on an H200, 200x8192x28672
// takes 1.76 times the best time with the winner at 128 tokens, and 1.00 with the model's pick.
// Above 128 tokens, the model called eight near winners 2 to 4 % slower than its pick, and seven
// were, by 1.9 % in the mean of all.
constexpr double accepted_slowdown(std::int64_t tokens) { return tokens <= 128 ? 1.05 : 1.02; }

// Returns what the cost model says against such a winner, or nothing. A family whose
// estimates only order candidates says nothing.
std::optional<std::string> slower_than_model(const KernelConfig& config, const KernelConfig& model,
                                             const Problem& problem, std::int64_t tokens,
                                             const DeviceSpec& device) {
  if (!estimates_time(problem)) return std::nullopt;
  const double expected = estimate_us(config, problem, tokens, device);
  const double pick = estimate_us(model, problem, tokens, device);
  if (expected <= accepted_slowdown(tokens) * pick) return std::nullopt;
  return fmt::format("the cost model expects {:.4g} us of it and {:.4g} of its own pick", expected,
                     pick);
}

// Returns the beginning of a text that a file of others may have made long.
std::string shortened(std::string text) {
  constexpr std::size_t kMostBytes = 1000;
  if (text.size() > kMostBytes) text.replace(kMostBytes, std::string::npos, " ...");
  return text;
}

// Returns what a record is to the problem: "the exact record".
std::string_view kind_of(TuningMatch match, bool is_sister) {
  switch (match) {
    case TuningMatch::kExact:
      return "the exact record";
    case TuningMatch::kNearBucket:
      return "the near bucket's record";
    case TuningMatch::kNearShape:
      return "the near shape's record";
    case TuningMatch::kOtherDevice:
      return is_sister ? "the sister card's record" : "another device's record";
  }
  return "a record";
}

// Describes a record. One that a person wrote may lack what was measured.
std::string describe(const TuningHit& hit, bool is_sister) {
  const TuningRecord& r = *hit.record;
  const std::string measured =
      r.winner.median_us > 0
          ? fmt::format("{:.4g} us, {:.3f} times the default's speed", r.winner.median_us, r.gain)
          : "not timed";
  return shortened(fmt::format("{} of '{}' at {} tokens on {} with {} SMs ({}, {}, {})",
                               kind_of(hit.match, is_sister), r.problem, r.tokens, r.device,
                               r.sm_count, measured, r.date.empty() ? "undated" : r.date,
                               hit.origin));
}

// Says which records were passed over, as the end of a sentence. A file may have any number.
class PassedOver {
 public:
  void add(const std::string& record, const std::string& why) {
    if (++count_ > kMostSaid) return;
    text_ += "; not used: " + record;
    if (!why.empty()) text_ += ", because " + shortened(why);
  }
  std::string text() const {
    return count_ <= kMostSaid ? text_
                               : fmt::format("{}; not used: {} more", text_, count_ - kMostSaid);
  }

 private:
  static constexpr std::size_t kMostSaid = 8;
  std::string text_;
  std::size_t count_ = 0;
};

// Returns what chose the configuration of a hit.
ChosenBy chosen_by(TuningMatch match) {
  switch (match) {
    case TuningMatch::kExact:
      return ChosenBy::kRecord;
    case TuningMatch::kNearBucket:
      return ChosenBy::kNearBucket;
    case TuningMatch::kNearShape:
      return ChosenBy::kNearShape;
    case TuningMatch::kOtherDevice:
      break;
  }
  return ChosenBy::kSisterCard;
}

}  // namespace

std::string_view name_of(ChosenBy by) {
  switch (by) {
    case ChosenBy::kRecord:
      return "exact record";
    case ChosenBy::kNearBucket:
      return "near bucket";
    case ChosenBy::kNearShape:
      return "near shape";
    case ChosenBy::kSisterCard:
      return "sister card";
    case ChosenBy::kModel:
      return "cost model";
  }
  return "unknown";
}

std::string tuning_text(const Problem& problem) { return to_text(with_dynamic_tokens(problem)); }

Choice choose_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device,
                     const cache::TuningSet& records) {
  PassedOver passed_over;
  std::optional<KernelConfig> pick;  // ranks the whole space, so at most once
  const auto model = [&]() -> const KernelConfig& {
    if (!pick) pick = default_config(problem, tokens, device);
    return *pick;
  };
  for (const auto& [hit, measured_here] : records_for(problem, tokens, device, records)) {
    const bool is_sister = hit.record->sm_count == device.sm_count && estimates_time(problem);
    if (hit.match == TuningMatch::kOtherDevice && !is_sister) {
      passed_over.add(describe(hit, false), {});
      continue;
    }
    auto config = usable_winner(*hit.record, problem, tokens, device);
    if (config && !measured_here) {
      if (auto slower = slower_than_model(*config, model(), problem, tokens, device))
        config = fail(ErrorCode::kUnsupported, std::move(*slower));
    }
    if (config)
      return {std::move(*config), chosen_by(hit.match), *hit.record,
              describe(hit, is_sister) + passed_over.text()};
    passed_over.add(describe(hit, is_sister), config.error().message);
  }
  return {model(), ChosenBy::kModel, std::nullopt,
          default_reason(problem, tokens, device) + passed_over.text()};
}

}  // namespace octile
