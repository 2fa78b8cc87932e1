// Inputs that reach every branch of quantising: ordinary values, each class of special value alone,
// all of them mixed, and raw bit patterns.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/types.h"
#include "runtime/reference/cast.h"

namespace octile::tests {

enum class Fill {
  kNormal,         // N(0, 1)
  kZeros,          // +0
  kNegativeZeros,  // -0
  kSubnormal,      // around 2^-128: subnormal in bf16 and fp32, zero in fp16
  kHuge,           // around fp32's maximum: infinite in fp16
  kOutlier,        // N(0, 1), one element at 60000
  kOneNaN,         // N(0, 1), one NaN
  kInfinities,     // N(0, 1), one element in 64 infinite
  kMixed,          // a quarter special values of every class
  kBits,           // uniform bit patterns
};
inline constexpr std::array<std::pair<Fill, std::string_view>, 10> kFills{{
    {Fill::kNormal, "normal"},
    {Fill::kZeros, "zeros"},
    {Fill::kNegativeZeros, "negative zeros"},
    {Fill::kSubnormal, "subnormal"},
    {Fill::kHuge, "huge"},
    {Fill::kOutlier, "outlier"},
    {Fill::kOneNaN, "one NaN"},
    {Fill::kInfinities, "infinities"},
    {Fill::kMixed, "mixed"},
    {Fill::kBits, "bits"},
}};

inline std::string_view name_of(Fill fill) { return kFills[static_cast<std::size_t>(fill)].second; }

inline float draw(Fill fill, std::mt19937& random) {
  std::normal_distribution<float> normal;
  constexpr float kLimit = std::numeric_limits<float>::max();
  switch (fill) {
    case Fill::kZeros:
      return 0.0F;
    case Fill::kNegativeZeros:
      return -0.0F;
    case Fill::kSubnormal:
      return std::ldexp(normal(random), -128);
    case Fill::kHuge:
      return random() % 2 == 0 ? kLimit : -kLimit * 0.75F;
    case Fill::kInfinities:
      if (random() % 64 == 0) return random() % 2 == 0 ? INFINITY : -INFINITY;
      return normal(random);
    case Fill::kMixed: {
      constexpr float kSpecial[] = {0.0F, -0.0F, NAN, INFINITY, -INFINITY, kLimit, 1e-40F, 200.0F};
      return random() % 4 == 0 ? kSpecial[random() % 8] : normal(random);
    }
    default:
      return normal(random);
  }
}

inline void put(char* p, DType type, float value) {
  if (type == DType::kFP32) {
    std::memcpy(p, &value, 4);
    return;
  }
  const std::uint16_t bits =
      type == DType::kBF16 ? reference::float_to_bf16(value) : reference::float_to_fp16(value);
  std::memcpy(p, &bits, 2);
}

// `elements` elements of `type`, packed. The same for the same arguments. Drawn up to a prime
// number of elements, then repeated: rows differ, and large inputs cost a copy.
inline std::vector<char> make_input(DType type, std::int64_t elements, Fill fill, unsigned seed) {
  constexpr std::int64_t kMostDrawn = 1048573;
  const std::int64_t bytes = size_of(type);
  std::vector<char> x(static_cast<std::size_t>(elements * bytes));
  std::mt19937 random(seed);
  const std::int64_t drawn = std::min(elements, kMostDrawn);
  for (std::int64_t i = 0; i < drawn; ++i) {
    char* const p = x.data() + i * bytes;
    if (fill == Fill::kBits) {
      const auto bits = static_cast<std::uint32_t>(random());
      std::memcpy(p, &bits, static_cast<std::size_t>(bytes));
    } else {
      put(p, type, draw(fill, random));
    }
  }
  for (std::int64_t i = drawn; i < elements; i += drawn) {
    std::memcpy(x.data() + i * bytes, x.data(),
                static_cast<std::size_t>(std::min(drawn, elements - i) * bytes));
  }
  if (elements > 0 && (fill == Fill::kOutlier || fill == Fill::kOneNaN)) {
    const float special = fill == Fill::kOutlier ? 60000.0F : NAN;
    put(x.data() + elements / 2 * bytes, type, special);
  }
  return x;
}

}  // namespace octile::tests
