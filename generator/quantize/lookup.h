// The part of a fused source that a kernel may keep in a table. A function of a bf16 input has at
// most 2^16 values. It has a few thousand if all small inputs share one value and all large inputs
// another, as those of a sigmoid do. Reading the table takes 5 instructions; computing takes 17 to
// 22.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "generator/core/expression.h"

namespace octile {

struct Lookup {
  Expr part;  // a subtree of the source, over x0
  // Bits of the smallest and the largest magnitude with values of their own. For each sign, smaller
  // magnitudes have the value of the first, and larger ones (up to infinity) that of the last.
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

// Magnitudes that a table has places for, for each sign.
inline constexpr int kLookupMagnitudes = 4096;
inline constexpr int kLookupBytes = 2 * kLookupMagnitudes * int{sizeof(float)};

// Returns the largest part, with an exp, tanh, sigmoid, normcdf or normpdf, that fits the table,
// for a source of one bf16 input and one expression; null if there is none. A NaN needs no place in
// the table: the source also reads the input outside the part, and every operation keeps a NaN.
// Thread-safe, also across a fork. A text is searched once, in 1 to 4 ms, and what was found stays
// in memory.
std::shared_ptr<const Lookup> lookup_of(std::string_view source);

}  // namespace octile
