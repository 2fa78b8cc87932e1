// The token axis of a problem: the dimension that holds the token count, which may be known only
// when a kernel is launched.
#pragma once

#include <cstdint>
#include <string_view>

namespace octile {

inline constexpr std::int64_t kDynamic = -1;  // a dimension whose text is '?'

struct TokenAxis {
  std::string_view dimension;        // as the problem's text calls it: "m", "k", "rows"
  std::int64_t tokens = kDynamic;    // what the problem states, or kDynamic
  std::string_view name = "tokens";  // as the structs of a call name the count: "tokens", "rows"

  bool is_dynamic() const { return tokens == kDynamic; }
  friend bool operator==(const TokenAxis&, const TokenAxis&) = default;
};

// One dimension of a problem, by the name that its text has.
struct Extent {
  std::string_view name;
  std::int64_t value = 0;  // or kDynamic
  friend bool operator==(const Extent&, const Extent&) = default;
};

}  // namespace octile
