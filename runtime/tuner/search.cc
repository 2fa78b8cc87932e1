#include "runtime/tuner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace octile::tuner {
namespace {

// The share of the budget that compiling and verifying may take. Later candidates do not take part.
constexpr double kIntakeShare = 0.5;
constexpr double kVariantsShare = 0.3;  // of the rest of the budget
// This number of the fastest candidates, and the default, have their variants timed. Two timings
// pick the fastest, so the pick varies between searches. A GEMM's best raster is up to 3 % faster
// than the usual one.
constexpr std::size_t kVaried = 2;
// The variants of the fastest so far are compiled once this few candidates are left.
constexpr std::size_t kVariantsAhead = 16;
// If the better of two first times is that much above the best of all, neither noise nor a card
// that warms up explains it: a cool and a warm card put the same configurations up to 3 % apart.
constexpr double kHopeless = 1.12;
// A first time of this many times the best is not taken again: no outlier takes as long. Those of
// long calls take less.
constexpr double kFarBehind = 2;
constexpr double kFarBehindOfLong = 1.25;
constexpr double kLongUs = 2000;
constexpr std::size_t kVerified = 4;  // at least, as far as there are that many
constexpr double kPollSeconds = 0.005;

class Search {
 public:
  Search(Bench& bench, const Budget& budget, const RaceOptions& options)
      : bench_(bench), budget_(budget), options_(options) {}

  Result<SearchResult> run() {
    for (int i = 0; i < bench_.candidates(); ++i)
      if (!bench_.variant_of(i)) pending_.push_back(i);
    if (Status ok = intake(kIntakeShare); !ok) return tl::unexpected<Error>(ok.error());
    const bool none_left = pending_.empty();
    pending_ = variants_of_the_fastest();
    varies_ = false;
    if (Status ok = intake(kVariantsShare); !ok) return tl::unexpected<Error>(ok.error());
    result_.compiled = static_cast<int>(compiled_.size());
    result_.timed = static_cast<int>(timed_.size());
    for (bool all_right = false; !all_right;) {
      const std::vector<Entry> entries = hopeful();
      if (entries.empty()) {
        const bool none_right = none_left && passed_.empty();
        result_.outcome = none_right ? Outcome::kNoneRight : Outcome::kOutOfTime;
        return result_;
      }
      if (!has_device(budget_)) return result_;
      auto raced = [&] {
        const Spell racing(budget_, result_.seconds.race);
        return race(bench_, entries, budget_, options_);
      }();
      if (!raced) return tl::unexpected<Error>(raced.error());
      result_.race = std::move(*raced);
      // If one is wrong, those that it kept out of the race get their turn.
      const auto right = verify_the_best();
      if (!right) return tl::unexpected<Error>(right.error());
      all_right = *right;
    }
    result_.winner = result_.race.winner;
    result_.outcome = !result_.race.finished ? Outcome::kOutOfTime
                      : result_.winner != 0  ? Outcome::kTuned
                                             : Outcome::kDefaultStays;
    return result_;
  }

 private:
  // Checks and times all pending candidates that are compiled in time.
  Status intake(double share) {
    bench_.start_builds(pending_);
    const Budget time = budget_.part(budget_.left() * share);
    while (!pending_.empty() && time.left() > 0) {
      const auto built = next_built(std::min(kPollSeconds, time.left()));
      if (!built) continue;
      const auto& [candidate, report] = *built;
      if (!report) {
        drop(candidate, Stage::kCompile, report.error().message);
        continue;
      }
      const bool spills = report->spill_bytes > 0 || report->stack_bytes > 0;
      if (spills && candidate != 0) {
        drop(candidate, Stage::kSpills,
             fmt::format("{} bytes of spills and {} of stack a thread", report->spill_bytes,
                         report->stack_bytes));
        continue;
      }
      compiled_.insert(candidate);
      if (!has_device(time)) break;
      if (Status ok = check_and_time(candidate); !ok) return ok;
    }
    return {};
  }

  std::vector<int> variants_of_the_fastest() const {
    std::vector<Entry> fastest = passed_;
    std::ranges::sort(fastest, {}, &Entry::first_us);
    std::set<int> varied;
    for (std::size_t i = 0; i < fastest.size(); ++i) {
      if (i < kVaried || fastest[i].candidate == 0) varied.insert(fastest[i].candidate);
    }
    std::vector<int> variants;
    for (int i = 0; i < bench_.candidates(); ++i) {
      const auto of = bench_.variant_of(i);
      if (of && varied.contains(*of)) variants.push_back(i);
    }
    return variants;
  }

  using Built = std::pair<int, Result<BuildReport>>;

  // Returns the first pending build that is ready. If none is, waits for the first of all.
  std::optional<Built> next_built(double seconds) {
    const Spell waiting(budget_, result_.seconds.builds);
    for (std::size_t i = 0; i <= pending_.size(); ++i) {
      const bool all_asked = i == pending_.size();
      const auto at = pending_.begin() + static_cast<std::ptrdiff_t>(all_asked ? 0 : i);
      if (all_asked) bench_.give_device_back();
      auto report = bench_.build(*at, all_asked ? seconds : 0);
      if (!report) continue;
      Built built{*at, std::move(*report)};
      pending_.erase(at);
      return built;
    }
    return std::nullopt;
  }

  bool has_device(const Budget& time) {
    return wait_until([this] { return bench_.take_device(); }, time);
  }

  Status check_and_time(int candidate) {
    const auto verdict = [&] {
      const Spell verifying(budget_, result_.seconds.verify);
      return bench_.spot_check(candidate);
    }();
    if (!verdict) return lost(candidate, verdict.error());
    if (!verdict->right) {
      drop(candidate, Stage::kVerify, verdict->why);
      return {};
    }
    const Spell timing(budget_, result_.seconds.first_times);
    double least = std::numeric_limits<double>::infinity();
    // Candidate 0 is timed twice in any case, because it takes part.
    for (int i = 0; i < 2; ++i) {
      const auto us = bench_.time(candidate);
      if (!us) return lost(candidate, us.error());
      least = std::min(least, *us);
      const double far = least >= kLongUs ? kFarBehindOfLong : kFarBehind;
      if (candidate != 0 && least > far * fastest_us()) break;
    }
    timed_.insert(candidate);
    passed_.push_back({candidate, least});
    // They compile while the last candidates are timed.
    if (varies_ && pending_.size() < kVariantsAhead) bench_.start_builds(variants_of_the_fastest());
    if (options_.watch) {
      if (candidate == 0) default_us_ = least;
      best_us_ = std::min(best_us_, least);
      options_.watch(best_us_, default_us_);
    }
    return {};
  }

  Status lost(int candidate, const Error& error) const {
    return fail(error.code, fmt::format("{}: {}", bench_.name(candidate), error.message));
  }

  // Verifies the winner, the default, and the fastest others up to kVerified, so that a fault that
  // the two have in common does not agree with itself. Returns false if one is wrong.
  Result<bool> verify_the_best() {
    if (!result_.race.finished) return true;
    std::vector<int> best;
    const auto add = [&](int candidate) {
      if (best.size() < kVerified && std::ranges::find(best, candidate) == best.end())
        best.push_back(candidate);
    };
    if (std::ranges::find(passed_, 0, &Entry::candidate) != passed_.end()) add(0);
    add(result_.race.winner);
    for (const Standing& standing : result_.race.standings) add(standing.candidate);
    std::vector<Entry> others = passed_;
    std::ranges::sort(others, {}, &Entry::first_us);
    for (const Entry& other : others) add(other.candidate);
    const Spell verifying(budget_, result_.seconds.verify);
    for (const int candidate : best) {
      const auto verdict = bench_.verify(candidate);
      if (!verdict) return tl::unexpected<Error>(lost(candidate, verdict.error()).error());
      if (!verdict->right) {
        reject(candidate, verdict->why);
        return false;
      }
      if (!verdict->first_is_wrong.empty()) {
        if (const auto wrong = std::exchange(accepted_, candidate))
          reject(*wrong, verdict->first_is_wrong);
        return false;
      }
      if (!accepted_) accepted_ = candidate;
    }
    return true;
  }

  void reject(int candidate, const std::string& why) {
    drop(candidate, Stage::kVerify, why);
    std::erase_if(passed_, [=](const Entry& entry) { return entry.candidate == candidate; });
  }

  void drop(int candidate, Stage stage, std::string why) {
    result_.dropped.push_back({candidate, stage, std::move(why)});
  }

  // Returns the entries of the race, ascending. The default and the incumbent take part with any
  // first times.
  std::vector<Entry> hopeful() const {
    const double best = fastest_us();
    std::vector<Entry> entries;
    for (const Entry& entry : passed_) {
      const bool stays = entry.candidate == 0 || entry.candidate == options_.incumbent;
      if (stays || entry.first_us <= kHopeless * best) entries.push_back(entry);
    }
    std::ranges::sort(entries, {}, &Entry::candidate);
    return entries;
  }

  double fastest_us() const {
    double best = std::numeric_limits<double>::infinity();
    for (const Entry& entry : passed_) best = std::min(best, entry.first_us);
    return best;
  }

  Bench& bench_;
  const Budget& budget_;
  const RaceOptions& options_;
  std::vector<int> pending_;
  bool varies_ = true;         // until the variants that take part are chosen
  std::vector<Entry> passed_;  // those that passed the checks so far, in that order
  std::set<int> compiled_, timed_;
  std::optional<int> accepted_;  // the candidate that verified ones are compared with
  double best_us_ = std::numeric_limits<double>::infinity(), default_us_ = 0;  // first times
  SearchResult result_;
};

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kTuned:
      return "tuned";
    case Outcome::kDefaultStays:
      return "default stays";
    case Outcome::kOutOfTime:
      return "out of time";
    case Outcome::kNoneRight:
      return "none right";
    case Outcome::kTooLarge:
      return "too large";
  }
  return "unknown";
}

std::string_view name_of(Stage stage) {
  switch (stage) {
    case Stage::kCompile:
      return "compile";
    case Stage::kSpills:
      return "spills";
    case Stage::kVerify:
      return "results";
  }
  return "unknown";
}

Result<SearchResult> search(Bench& bench, const Budget& budget, const RaceOptions& options) {
  return Search(bench, budget, options).run();
}

}  // namespace octile::tuner
