#include "runtime/tuner/rule.h"

#include <algorithm>

namespace octile::tuner {

Allowances Allowances::at_least(double noise) const {
  return {std::max(noise, incumbent), std::max(noise, standing_default), std::max(noise, tie)};
}

std::size_t place_of_winner(std::span<const Finalist> finalists, std::optional<int> incumbent,
                            const Allowances& allowances, double noise) {
  const Finalist& by_default = finalists.front();
  const auto keeps = std::ranges::find_if(finalists, [&](const Finalist& one) {
    return one.candidate == incumbent && one.over_best_interval.lo <= 1 + allowances.incumbent &&
           one.gain >= 1;
  });
  if (keeps != finalists.end()) return static_cast<std::size_t>(keeps - finalists.begin());
  if (by_default.over_best_interval.lo <= 1 + allowances.standing_default) return 0;
  const auto first = std::find_if(finalists.begin() + 1, finalists.end(), [&](const Finalist& one) {
    return one.over_best <= 1 + allowances.tie && one.gain > 1 + noise && one.gain_interval.lo > 1;
  });
  return first == finalists.end() ? 0 : static_cast<std::size_t>(first - finalists.begin());
}

bool is_settled(std::span<const Finalist> finalists, std::optional<int> incumbent,
                const Allowances& allowances) {
  bool open = false;
  const auto keeps = std::ranges::find_if(
      finalists, [&](const Finalist& one) { return one.candidate == incumbent; });
  if (keeps != finalists.end()) {
    const Interval& behind = keeps->over_best_interval;
    if (behind.hi <= 1 + allowances.incumbent) return true;
    open = behind.lo <= 1 + allowances.incumbent;
  }
  const Interval& behind = finalists.front().over_best_interval;
  if (behind.hi <= 1 + allowances.standing_default) return !open;
  open = open || behind.lo <= 1 + allowances.standing_default;
  for (const Finalist& one : finalists.subspan(1)) {
    if (one.over_best_interval.hi <= 1 + allowances.tie) return !open;  // later ones do not matter
    open = open || one.over_best_interval.lo <= 1 + allowances.tie;
  }
  return !open;
}

}  // namespace octile::tuner
