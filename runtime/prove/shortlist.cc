#include "runtime/prove/shortlist.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "generator/families.h"
#include "runtime/engine/engine.h"

namespace octile::tuner {
namespace {

// A near relative of a configuration is worth its compile if the model has it within 5 %. Between
// tiles the model errs by more: 12 % rms over 602 tiles timed on an H200. Relatives share that
// error, so they must not fill the list.
constexpr double kCrowdPenalty = 0.05;
constexpr double kNear = 1.5;
// The model is not so wrong that a configuration of twice the best estimate could win.
constexpr double kFarthest = 2.0;

// Returns the first word of `text` and removes it with the separator behind it.
std::string_view next(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

bool parse_number(std::string_view word, double& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

bool precedes(const Ranked& x, const Ranked& y) {
  if (x.estimate_us != y.estimate_us) return x.estimate_us < y.estimate_us;
  return to_text(x.config) < to_text(y.config);
}

class Picker {
 public:
  Picker(std::vector<Ranked> ranked, const KernelConfig& preferred) : ranked_(std::move(ranked)) {
    if (std::ranges::find(ranked_, preferred, &Ranked::config) == ranked_.end())
      ranked_.push_back({preferred, 0});
    // Sorted, so that the picks do not depend on the order of the argument.
    std::ranges::sort(ranked_, precedes);
    for (const Ranked& r : ranked_) points_.emplace_back(to_text(r.config));
    nearest_.assign(ranked_.size(), std::numeric_limits<double>::infinity());
    crowd_.assign(ranked_.size(), 0);
    const auto found = std::ranges::find(ranked_, preferred, &Ranked::config);
    pick(static_cast<std::size_t>(found - ranked_.begin()));
  }

  // Picks the best estimate, made a little worse for each near relative that is already picked.
  bool pick_liked() {
    return pick_least(
        [this](std::size_t i) { return ranked_[i].estimate_us * (1 + kCrowdPenalty * crowd_[i]); });
  }

  // Picks the one farthest from all picked so far, except hopeless ones.
  bool pick_different() {
    double best_us = std::numeric_limits<double>::infinity();
    for (const Ranked& r : ranked_)
      if (r.estimate_us > 0) best_us = std::min(best_us, r.estimate_us);
    return pick_least([&](std::size_t i) {
      const bool hopeless = ranked_[i].estimate_us > kFarthest * best_us;
      return hopeless ? std::numeric_limits<double>::infinity() : -nearest_[i];
    });
  }

  // Returns the picks, in the order in which they were made.
  std::vector<Ranked> picks() const {
    std::vector<Ranked> list;
    for (const std::size_t i : picked_) list.push_back(ranked_[i]);
    return list;
  }

 private:
  bool is_picked(std::size_t i) const { return nearest_[i] == 0; }

  template <typename Score>
  bool pick_least(const Score& score) {
    std::size_t best = ranked_.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < ranked_.size(); ++i) {
      if (is_picked(i)) continue;
      const double value = score(i);
      if (value < least) {
        least = value;
        best = i;
      }
    }
    if (best == ranked_.size()) return false;
    pick(best);
    return true;
  }

  void pick(std::size_t at) {
    picked_.push_back(at);
    for (std::size_t i = 0; i < ranked_.size(); ++i) {
      const double apart = distance(points_[i], points_[at]);
      nearest_[i] = std::min(nearest_[i], apart);
      if (apart <= kNear) ++crowd_[i];
    }
  }

  std::vector<Ranked> ranked_;  // sorted by estimate, then text
  std::vector<ConfigPoint> points_;
  std::vector<double> nearest_;      // distance to the nearest picked one; 0 for picked ones
  std::vector<int> crowd_;           // number of near relatives that are picked
  std::vector<std::size_t> picked_;  // the default first
};

}  // namespace

std::vector<Ranked> rank(const Problem& problem, std::int64_t tokens, const DeviceSpec& device,
                         const std::vector<KernelConfig>& configs) {
  std::vector<Ranked> ranked;
  ranked.reserve(configs.size());
  const std::vector<double> us = estimates_us(configs, problem, tokens, device);
  for (std::size_t i = 0; i < configs.size(); ++i) ranked.push_back({configs[i], us[i]});
  return ranked;
}

ConfigPoint::ConfigPoint(std::string_view text) {
  while (!text.empty()) {
    std::string_view field = next(text, ' ');
    next(field, '=');
    // "128x128x64" is three coordinates; "tma" is one.
    while (!field.empty()) {
      const std::string_view part = next(field, 'x');
      double number = 0;
      if (parse_number(part, number) && number > 0) {
        coordinates_.push_back({true, std::log2(number)});
      } else {
        // A double holds 32 bits of the hash exactly.
        const std::size_t hash = std::hash<std::string_view>()(part) & 0xffffffffU;
        coordinates_.push_back({false, static_cast<double>(hash)});
      }
    }
  }
}

double distance(const ConfigPoint& x, const ConfigPoint& y) {
  const auto& longer = x.coordinates_.size() < y.coordinates_.size() ? y : x;
  const auto& shorter = &longer == &x ? y : x;
  const std::size_t common = shorter.coordinates_.size();
  auto sum = static_cast<double>(longer.coordinates_.size() - common);
  for (std::size_t i = 0; i < common; ++i) {
    const auto& a = x.coordinates_[i];
    const auto& b = y.coordinates_[i];
    if (a.is_number && b.is_number) {
      sum += std::min(1.0, std::fabs(a.value - b.value));
    } else if (a.is_number != b.is_number || a.value != b.value) {
      sum += 1;
    }
  }
  return sum;
}

std::vector<Ranked> shortlist(std::vector<Ranked> ranked, const KernelConfig& preferred,
                              const ShortlistOptions& options, const std::vector<Ranked>& winners) {
  Picker picker(std::move(ranked), preferred);
  const bool by_winners = !winners.empty();
  const int liked = by_winners ? options.liked_beside_winners : options.liked;
  const int different = by_winners ? options.different_beside_winners : options.different;
  for (int i = 1; i < liked && picker.pick_liked(); ++i) {
  }
  for (int i = 0; i < different && picker.pick_different(); ++i) {
  }
  std::vector<Ranked> list = picker.picks();
  for (const Ranked& winner : winners) {
    if (std::ranges::find(list, winner.config, &Ranked::config) == list.end())
      list.push_back(winner);
  }
  std::sort(list.begin() + 1, list.end(), precedes);
  return list;
}

}  // namespace octile::tuner
