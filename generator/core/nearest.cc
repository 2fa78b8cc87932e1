#include "generator/core/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace octile {
namespace {

// A longer word is not a slip of the finger, and the distance takes the product of both lengths.
constexpr std::size_t kMostLetters = 64;

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between beginnings of `a` and `b`.
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::optional<std::string_view> nearest(std::string_view word,
                                        std::span<const std::string_view> words) {
  if (word.size() < 2 || word.size() > kMostLetters) return std::nullopt;
  std::optional<std::string_view> found;
  // One slip in a word of up to five letters, two in one of six to eight, and so on.
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string_view candidate : words) {
    const std::size_t distance =
        candidate.starts_with(word) ? 1 : edit_distance(word, candidate.substr(0, kMostLetters));
    if (distance >= least || distance >= candidate.size()) continue;
    least = distance;
    found = candidate;
  }
  return found;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> words) {
  const auto meant = nearest(word, words);
  return meant ? fmt::format("; did you mean '{}'?", *meant) : std::string();
}

}  // namespace octile
