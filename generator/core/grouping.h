// Several tensors in one: the token groups of a mixture of experts, and their weights.
#pragma once

#include <cstdint>
#include <string_view>

#include "generator/core/text_fields.h"

namespace octile {

enum class Grouping : int {
  kNone = 0,
  kContiguous =
      1,         // "contiguous": groups follow one another in the rows; offsets are on the device
  kMasked = 2,   // "masked": groups of equally many rows, of which the first few exist
  kStacked = 3,  // "stacked": tensors of one shape, one behind the other, with copies of their own
};
// Returns true for groups that each call says the sizes of.
constexpr bool has_token_groups(Grouping g) {
  return g == Grouping::kContiguous || g == Grouping::kMasked;
}

// Returns the word of the problem's text.
std::string_view name_of(Grouping);
Parsed<Grouping> parse_grouping(std::string_view text);

// A group's columns of a transposed copy begin on a multiple of this, so that a product along them
// never mixes groups.
inline constexpr std::int64_t kGroupAlign = 128;

// Columns of the transposed copy of contiguous groups: an upper bound over how `rows` rows may be
// shared out to `groups` groups, each rounded up to kGroupAlign.
std::int64_t contiguous_columns(std::int64_t rows, std::int64_t groups);

}  // namespace octile
