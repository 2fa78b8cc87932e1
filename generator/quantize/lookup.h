// The part of a fused source that a kernel may keep in a table: a function of a bf16 input has 2^16
// values at most, and where small inputs share one and large ones another, as of a sigmoid, some
// thousands. Reading it takes 5 instructions where computing takes 17 to 22.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "generator/core/expression.h"

namespace octile {

struct Lookup {
  Expr part;  // of the source, over x0
  // Bits of the smallest and the largest magnitude with values of their own: below and beyond, up
  // to infinity, the part is what it is there, sign by sign.
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

// Magnitudes a table has places for; as many again for the negative ones.
inline constexpr int kLookupMagnitudes = 4096;
inline constexpr int kLookupBytes = 2 * kLookupMagnitudes * int{sizeof(float)};

// Of a source of one bf16 input and one expression: its largest part that holds an exp, tanh or
// sigmoid and fits the table; null where there is none. A NaN has no place: the source reads the
// input beside the part too, and no operation loses a NaN. Thread-safe; a text is searched once, in
// 1 to 4 ms.
std::shared_ptr<const Lookup> lookup_of(std::string_view source);

}  // namespace octile
