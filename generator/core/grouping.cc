#include "generator/core/grouping.h"

#include <algorithm>

#include "generator/core/types.h"

namespace octile {
namespace {

constexpr Words<Grouping, 4> kGroupings{{{Grouping::kNone, "none"},
                                         {Grouping::kContiguous, "contiguous"},
                                         {Grouping::kMasked, "masked"},
                                         {Grouping::kStacked, "stacked"}}};

}  // namespace

std::string_view name_of(Grouping grouping) { return word_of(grouping, kGroupings); }

Parsed<Grouping> parse_grouping(std::string_view text) { return parse_word(text, kGroupings); }

std::int64_t contiguous_columns(std::int64_t rows, std::int64_t groups) {
  const std::int64_t filled = std::min(rows, groups);  // groups that have a row
  if (filled <= 0) return 0;
  return kGroupAlign * (filled + (rows - filled) / kGroupAlign);
}

}  // namespace octile
