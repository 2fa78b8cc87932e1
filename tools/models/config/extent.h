// A dimension and what it is made of, so that an error can name the keys of a config.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace octile::tools {

struct Extent {
  std::int64_t value = 0;
  std::string keys = {};  // "num_attention_heads x head_dim"; empty for a plain number
};

// Products and sums stop here, beyond every dimension that a problem may have.
inline constexpr std::int64_t kSaturated = std::int64_t{1} << 62;

// Takes counts from 0 on.
constexpr std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kSaturated / b ? kSaturated : a * b;
}
constexpr std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  return std::min(kSaturated, a + b);
}

inline Extent plain(std::int64_t value) { return {value, std::to_string(value)}; }

inline Extent operator*(const Extent& a, const Extent& b) {
  const auto grouped = [](const Extent& e) {
    return e.keys.find(" + ") == std::string::npos ? e.keys : "(" + e.keys + ")";
  };
  return {saturating_product(a.value, b.value), grouped(a) + " x " + grouped(b)};
}
inline Extent operator*(std::int64_t a, const Extent& b) { return plain(a) * b; }
inline Extent operator+(const Extent& a, const Extent& b) {
  return {saturating_sum(a.value, b.value), a.keys + " + " + b.keys};
}

}  // namespace octile::tools
