#include "runtime/tuner/race.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace octile::tuner {
namespace {

// An entrant's times by lap or block. Those of an entrant that drops out end there. Two entrants
// are therefore paired over the laps at the beginning, up to the length of the shorter list.
struct Entrant {
  int candidate = 0;
  double first_us = 0;
  bool racing = true;
  std::vector<double> us = {};
  std::vector<double> again = {};  // first over second time within a block
  // A finalist that dropped out keeps its times over those of the fastest then.
  double over_best = 1;
  Interval over_best_interval{1, 1};
};

std::vector<double> ratios(const std::vector<double>& x, const std::vector<double>& y) {
  const std::size_t count = std::min(x.size(), y.size());
  std::vector<double> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = x[i] / y[i];
  return all;
}

double median_ratio(const Entrant& x, const Entrant& y) { return median(ratios(x.us, y.us)); }

double half_width(const Interval& interval) { return (interval.hi - interval.lo) / 2; }

class Race {
 public:
  Race(Bench& bench, std::span<const Entry> entries, const Budget& budget,
       const RaceOptions& options)
      : bench_(bench), budget_(budget), options_(options) {
    for (const Entry& entry : entries) entrants_.push_back({entry.candidate, entry.first_us});
  }

  Result<RaceResult> run() {
    if (Status ok = screen(); !ok) return tl::unexpected<Error>(ok.error());
    pick_finalists();
    if (Status ok = final(); !ok) return tl::unexpected<Error>(ok.error());
    judge();
    note_conditions();
    return result_;
  }

 private:
  static constexpr int kRanked = 6;  // blocks; ranks give an interval from here on
  using Order = std::vector<Entrant*>;
  using Times = std::vector<std::pair<Entrant*, double>>;

  Order racing() {
    Order order;
    for (Entrant& entrant : entrants_)
      if (entrant.racing) order.push_back(&entrant);
    return order;
  }
  Entrant& reference() { return entrants_.front(); }  // never drops out
  // The rule asks for both in the final.
  bool stays(const Entrant& entrant) {
    return &entrant == &reference() || entrant.candidate == options_.incumbent;
  }

  // Returns one measurement of each in that order, or nothing if time is up. A lap during which the
  // device throttled is repeated.
  Result<Times> lap(const Order& order) {
    for (int repeated = 0;; ++repeated) {
      // The first lap's length is not known, so every measurement checks the time left as well.
      if (!budget_.allows(lap_seconds_ * static_cast<double>(order.size()))) return Times();
      const double began = budget_.now();
      Times times;
      for (Entrant* entrant : order) {
        if (budget_.left() <= 0) return Times();
        const auto us = bench_.time(entrant->candidate);
        if (!us)
          return fail(us.error().code,
                      fmt::format("{}: {}", bench_.name(entrant->candidate), us.error().message));
        times.emplace_back(entrant, *us);
      }
      lap_seconds_ = (budget_.now() - began) / static_cast<double>(order.size());
      const DeviceTelemetry state = bench_.state();
      if (!state.throttled || repeated == options_.throttled_laps) {
        result_.throttled_kept += state.throttled ? 1 : 0;
        states_.push_back(state);
        return times;
      }
      ++result_.throttled_repeated;
    }
  }

  Status screen() {
    const auto few = static_cast<std::size_t>(options_.finalists) + 1;
    for (int i = 0; i < options_.screening_laps; ++i) {
      Order order = racing();
      if (order.size() <= few) return {};
      // A final of the best so far says more than another lap.
      const auto measurements =
          order.size() + 2 * few * static_cast<std::size_t>(options_.least_blocks);
      if (!budget_.allows(lap_seconds_ * static_cast<double>(measurements))) return {};
      if (i % 2 == 1) std::reverse(order.begin(), order.end());
      const auto times = lap(order);
      if (!times) return tl::unexpected<Error>(times.error());
      if (times->empty()) return {};
      for (const auto& [entrant, us] : *times) entrant->us.push_back(us);
      ++result_.laps;
      drop_losers();
    }
    return {};
  }

  Entrant& leader() {
    Order order = racing();
    return **std::min_element(order.begin(), order.end(), [](const Entrant* x, const Entrant* y) {
      return median(x->us) < median(y->us);
    });
  }

  // Returns the typical deviation of one paired ratio from its median, over all that still race.
  double scatter(const Entrant& to) {
    std::vector<double> deviations;
    for (const Entrant* entrant : racing()) {
      if (entrant == &to) continue;
      const auto all = ratios(entrant->us, to.us);
      const double middle = median(all);
      for (const double ratio : all) deviations.push_back(std::fabs(ratio / middle - 1));
    }
    constexpr double kSigmaOverMad = 1.4826;  // of a normal distribution
    return kSigmaOverMad * quantile(std::move(deviations), 0.5);
  }

  // Drops entrants that are slower than the leader by a margin. One lap decides nothing, because
  // times have outliers upwards. Two laps must agree; from three on the median counts. The margin
  // shrinks with the number of laps, but not below three standard errors of a median.
  void drop_losers() {
    constexpr double kFirstMargin = 0.10;
    constexpr double kLeastMargin = 0.02;
    constexpr double kStandardErrors = 3 * 1.2533;  // a median's is sqrt(pi / 2) of a mean's
    const Entrant& best = leader();
    const std::size_t laps = best.us.size();
    if (laps < 2) return;
    const double root = std::sqrt(static_cast<double>(laps));
    const double margin = std::max({kFirstMargin / static_cast<double>(laps), kLeastMargin,
                                    kStandardErrors * scatter(best) / root});
    for (Entrant* entrant : racing()) {
      if (stays(*entrant) || entrant == &best) continue;
      auto all = ratios(entrant->us, best.us);
      const double ratio =
          laps == 2 ? *std::min_element(all.begin(), all.end()) : median(std::move(all));
      if (ratio > 1 + margin) entrant->racing = false;
    }
  }

  // Keeps the fastest so far and the reference. The times of the screening are not used again,
  // because laps are not blocks.
  void pick_finalists() {
    Order order = racing();
    if (order.front()->us.empty()) {
      std::ranges::stable_sort(order, {}, &Entrant::first_us);
    } else {
      const Entrant& best = leader();
      std::ranges::stable_sort(
          order, {}, [&](const Entrant* entrant) { return median_ratio(*entrant, best); });
    }
    int kept = 0;
    for (Entrant* entrant : order) {
      if (!stays(*entrant) && ++kept > options_.finalists) entrant->racing = false;
    }
    for (Entrant& entrant : entrants_) entrant.us.clear();
  }

  Status final() {
    const double began = budget_.now();
    for (int block = 0; block < options_.most_blocks; ++block) {
      const Order order = block_order(block);
      Order mirrored = order;
      mirrored.insert(mirrored.end(), order.rbegin(), order.rend());
      const auto times = lap(mirrored);
      if (!times) return tl::unexpected<Error>(times.error());
      if (times->empty()) return {};
      ++result_.blocks;
      for (std::size_t i = 0; i < order.size(); ++i) {
        const double first = (*times)[i].second;
        const double second = (*times)[times->size() - 1 - i].second;
        order[i]->us.push_back((first + second) / 2);
        order[i]->again.push_back(first / second);
      }
      drop_behind();
      if (result_.blocks < kRanked) continue;
      const bool is_long = budget_.now() - began > options_.most_final_seconds;
      result_.finished = is_long || result_.blocks >= options_.least_blocks;
      if (is_long || (result_.finished && is_decided())) return {};
    }
    return {};
  }

  // Returns the order of one half of a block. It changes from block to block, so that each entrant
  // follows different ones. The reference is last and its two times are neighbours, so that no
  // drift lies between them and their difference is noise.
  Order block_order(int block) {
    Order order = racing();
    std::rotate(order.begin(), order.begin() + 1, order.end());
    const auto others = static_cast<std::ptrdiff_t>(order.size()) - 1;
    if (others > 0) std::rotate(order.begin(), order.begin() + block % others, order.end() - 1);
    return order;
  }

  // Returns the noise of the reference against itself. The ratio of two single times scatters
  // sqrt(2) more than that of two means of two.
  double noise() {
    const double width = half_width(median_interval(reference().again));
    return std::max(options_.least_noise, width / std::numbers::sqrt2);
  }

  // Returns the fastest of those that still race. One that dropped out may look faster in its few
  // blocks, if the reference had an outlier there.
  Entrant& fastest() {
    Entrant* best = &reference();
    for (Entrant* entrant : racing()) {
      if (median_ratio(*entrant, reference()) < median_ratio(*best, reference())) best = entrant;
    }
    return *best;
  }

  Allowances allowances() { return options_.allowances.at_least(noise()); }

  // Returns how far an entrant may be behind the fastest and still win.
  double allowance_of(const Entrant& entrant) {
    const Allowances all = allowances();
    return entrant.candidate == options_.incumbent ? all.incumbent : all.tie;
  }

  // Drops finalists that cannot win any more; the reference is timed until the end. In few blocks,
  // those that were far behind in each.
  void drop_behind() {
    constexpr int kLeastBlocks = 2;
    constexpr double kFar = 0.05;
    if (result_.blocks < kLeastBlocks) return;
    const Entrant& best = fastest();
    for (Entrant* entrant : racing()) {
      if (entrant == &reference() || entrant == &best) continue;
      const auto behind = ratios(entrant->us, best.us);
      const Interval interval = median_interval(behind);  // of few the whole range
      const double allowed = result_.blocks < kRanked ? kFar : allowance_of(*entrant);
      if (interval.lo <= 1 + allowed) continue;
      entrant->racing = false;
      entrant->over_best = median(behind);
      entrant->over_best_interval = interval;
    }
  }

  // Returns those that may win, in the order of preference, the reference first.
  std::vector<Finalist> finalists() {
    const Entrant& best = fastest();
    std::vector<Finalist> all;
    for (const Entrant* entrant : racing()) {
      const auto behind = ratios(entrant->us, best.us);
      const auto gains = ratios(reference().us, entrant->us);
      all.push_back({entrant->candidate, median(behind), median_interval(behind), median(gains),
                     median_interval(gains)});
    }
    return all;
  }

  // Returns true once more blocks cannot change the decision. High noise keeps it open, because a
  // few outliers make noise look large in few blocks.
  bool is_decided() {
    if (noise() > options_.allowances.standing_default) return false;
    return is_settled(finalists(), options_.incumbent, allowances());
  }

  void judge() {
    result_.winner = reference().candidate;
    if (result_.blocks == 0) return;
    result_.noise = noise();
    const std::vector<Finalist> all = finalists();
    const auto stand = [this](const Entrant& entrant, double over_best, const Interval& interval) {
      result_.standings.push_back({entrant.candidate, median(entrant.us),
                                   median_interval(entrant.us), over_best, interval});
    };
    for (const Entrant& entrant : entrants_) {
      if (entrant.us.empty()) continue;
      const auto racing = std::ranges::find(all, entrant.candidate, &Finalist::candidate);
      if (racing == all.end()) {
        stand(entrant, entrant.over_best, entrant.over_best_interval);
      } else {
        stand(entrant, racing->over_best, racing->over_best_interval);
      }
    }
    std::stable_sort(
        result_.standings.begin(), result_.standings.end(),
        [](const Standing& x, const Standing& y) { return x.over_best < y.over_best; });
    if (!result_.finished) return;
    const std::size_t place = place_of_winner(all, options_.incumbent, allowances(), result_.noise);
    if (place == 0) return;
    result_.winner = all[place].candidate;
    result_.gain = all[place].gain;
    result_.gain_interval = all[place].gain_interval;
  }

  void note_conditions() {
    if (states_.empty()) return;
    const auto of = [this](double DeviceTelemetry::* member) {
      std::vector<double> values;
      for (const DeviceTelemetry& state : states_) values.push_back(state.*member);
      return median(std::move(values));
    };
    result_.conditions = {of(&DeviceTelemetry::sm_clock_mhz),
                          of(&DeviceTelemetry::memory_clock_mhz), of(&DeviceTelemetry::power_watts),
                          result_.throttled_kept > 0};
  }

  Bench& bench_;
  const Budget& budget_;
  const RaceOptions& options_;
  std::vector<Entrant> entrants_;
  double lap_seconds_ = 0;  // per measurement, in the last lap
  std::vector<DeviceTelemetry> states_;
  RaceResult result_;
};

}  // namespace

Result<RaceResult> race(Bench& bench, std::span<const Entry> entries, const Budget& budget,
                        const RaceOptions& options) {
  return Race(bench, entries, budget, options).run();
}

}  // namespace octile::tuner
