#include "tools/cache/key_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace octile::tools {
namespace {

constexpr std::size_t kShownCharacters = 160;

std::string cut(std::string_view text) {
  if (text.size() <= kShownCharacters) return std::string(text);
  return std::string(text.substr(0, kShownCharacters)) + "...";
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

constexpr std::string_view kNothing = "(nothing)";

// Adds the index of the first difference between two lists, and what either has there.
template <typename List>
void add_first(std::vector<KeyDifference>& differences, std::string_view what, const List& wanted,
               const List& found) {
  const auto [w, f] = std::ranges::mismatch(wanted, found);
  if (w == wanted.end() && f == found.end()) return;
  differences.push_back({fmt::format("{} {}", what, std::distance(wanted.begin(), w) + 1),
                         cut(w == wanted.end() ? kNothing : std::string_view(*w)),
                         cut(f == found.end() ? kNothing : std::string_view(*f))});
}

}  // namespace

std::vector<KeyDifference> key_differences(const cache::Identity& wanted,
                                           const cache::Toolchain* toolchain,
                                           const cache::Identity& found,
                                           const cache::Toolchain& found_toolchain) {
  std::vector<KeyDifference> differences;
  if (wanted.entry_name != found.entry_name) {
    differences.push_back({"entry", wanted.entry_name, found.entry_name});
  }
  if (wanted.architecture != found.architecture) {
    differences.push_back({"arch", wanted.architecture, found.architecture});
  }
  add_first(differences, "option", wanted.options, found.options);
  add_first(differences, "source line", lines_of(wanted.source), lines_of(found.source));
  if (toolchain != nullptr && *toolchain != found_toolchain) {
    differences.push_back({"toolchain", toolchain->text(), found_toolchain.text()});
  }
  return differences;
}

double key_nearness(const cache::Identity& a, const cache::Identity& b) {
  const std::vector<std::string_view> x = lines_of(a.source);
  const std::vector<std::string_view> y = lines_of(b.source);
  const std::size_t fewer = std::min(x.size(), y.size());
  const auto head = static_cast<std::size_t>(std::ranges::mismatch(x, y).in1 - x.begin());
  std::size_t tail = 0;
  while (tail < fewer - head && x[x.size() - 1 - tail] == y[y.size() - 1 - tail]) ++tail;
  const std::size_t more = std::max<std::size_t>(std::max(x.size(), y.size()), 1);
  double share =
      x.empty() && y.empty() ? 1.0 : static_cast<double>(head + tail) / static_cast<double>(more);
  // Each of these outweighs any difference in the source; the architecture outweighs most.
  if (a.architecture != b.architecture) share /= 8;
  if (a.options != b.options) share /= 4;
  if (a.entry_name != b.entry_name) share /= 2;
  return share;
}

}  // namespace octile::tools
