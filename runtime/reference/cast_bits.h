// The casts as branch-free functions on bits, so that loops over them vectorise.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "generator/core/types.h"

namespace octile::reference {

inline constexpr std::uint32_t kSignBit = 0x80000000U;
inline constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;

// Returns all ones if x < bound, else 0. Both are below 2^31.
inline std::uint32_t mask_below(std::uint32_t x, std::uint32_t bound) {
  return 0U - ((x - bound) >> 31U);
}

// Returns `a` where the mask has ones, else `b`. With a condition GCC keeps a branch before a
// floating-point operation whose result may not be chosen, and vectorises that with AVX-512 alone.
inline std::uint32_t choose(std::uint32_t mask, std::uint32_t a, std::uint32_t b) {
  return (a & mask) | (b & ~mask);
}

// The two formats of OCP "8-bit Floating Point Specification" (OFP8) 1.0, table 1.
template <DType fp8>
struct Fp8Format;
template <>
struct Fp8Format<DType::kE4M3> {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr std::uint32_t kMaxCode = 0x7E;       // 448; S.1111.111 is NaN
  static constexpr std::uint32_t kNanCode = 0x7F;       // for either sign, as the device writes it
  static constexpr std::uint32_t kInfinityCode = 0x7F;  // E4M3 has no infinity, so it becomes a NaN
  static constexpr std::uint32_t kInfinitySign = 0;     // the sign of an infinity is dropped
};
template <>
struct Fp8Format<DType::kE5M2> {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr std::uint32_t kMaxCode = 0x7B;  // 57344
  static constexpr std::uint32_t kNanCode = 0x7F;  // for either sign, as the device writes it
  static constexpr std::uint32_t kInfinityCode = 0x7C;
  static constexpr std::uint32_t kInfinitySign = 0x80;
};

// Returns the code of a finite value. An infinity counts as an overflowed finite value and
// saturates.
template <DType fp8>
inline std::uint32_t finite_to_fp8(std::uint32_t bits) {
  using Format = Fp8Format<fp8>;
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr std::uint32_t kHalfBelow = (1U << (kDropped - 1)) - 1U;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias)
                                    << Format::kMantissaBits;
  constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(128 - Format::kBias) << 23;
  // A power of two whose last bit is the format's subnormal step. Adding it makes the fp32 adder
  // round to nearest even on the subnormal grid.
  constexpr std::uint32_t kSubnormalMagic =
      static_cast<std::uint32_t>(128 - Format::kBias + kDropped) << 23;

  const std::uint32_t magnitude = bits & kMagnitude;
  const std::uint32_t rounded = magnitude + kHalfBelow + ((magnitude >> kDropped) & 1U);
  const std::uint32_t normal = (rounded >> kDropped) - kRebias;
  const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kSubnormalMagic);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - kSubnormalMagic;
  const std::uint32_t code = choose(mask_below(magnitude, kSmallestNormal), subnormal, normal);
  const std::uint32_t saturated = code < Format::kMaxCode ? code : Format::kMaxCode;
  return saturated | ((bits & kSignBit) >> 24);
}

// Returns `code` if `source`, the bits of an fp32, is finite, else the code of its infinity or NaN.
template <DType fp8>
inline std::uint32_t by_class(std::uint32_t source, std::uint32_t code) {
  using Format = Fp8Format<fp8>;
  const std::uint32_t magnitude = source & kMagnitude;
  const std::uint32_t infinity = Format::kInfinityCode | ((source >> 24) & Format::kInfinitySign);
  const std::uint32_t special =
      choose(mask_below(magnitude, kInfinityBits + 1), infinity, Format::kNanCode);
  return choose(mask_below(magnitude, kInfinityBits), code, special);
}

// Returns 2^(exponent - 127): an E8M0 scale that is not NaN. 2^-127 is subnormal; 255 is infinity.
inline float power_of_exponent(std::uint32_t exponent) {
  constexpr std::uint32_t kSubnormal = 0x400000U;
  return std::bit_cast<float>(exponent == 0 ? kSubnormal : exponent << 23U);
}

inline float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline float widen_fp16(std::uint16_t half) {
  const std::uint32_t sign = (static_cast<std::uint32_t>(half) & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  constexpr std::uint32_t kRebias = (127U - 15U) << 23;
  constexpr std::uint32_t kMagic = kRebias + (1U << 23);  // 2^-14
  const std::uint32_t normal = (magnitude << 13) + kRebias;
  const std::uint32_t special = (magnitude << 13) | kInfinityBits;
  // (2^-14 + mantissa * 2^-24) - 2^-14, which is exact.
  const float subnormal =
      std::bit_cast<float>(kMagic + (magnitude << 13)) - std::bit_cast<float>(kMagic);
  const std::uint32_t finite =
      choose(mask_below(magnitude, 0x400U), std::bit_cast<std::uint32_t>(subnormal), normal);
  return std::bit_cast<float>(choose(mask_below(magnitude, 0x7C00U), finite, special) | sign);
}

// Returns the value of a code that is neither a NaN nor an infinity.
template <DType fp8>
inline float widen_finite_fp8(std::uint32_t code) {
  using Format = Fp8Format<fp8>;
  constexpr int kShift = 23 - Format::kMantissaBits;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  constexpr std::uint32_t kMagic = kRebias + (1U << 23);  // the smallest normal value
  const std::uint32_t sign = (code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  const std::uint32_t normal = (magnitude << kShift) + kRebias;
  const float subnormal =
      std::bit_cast<float>(kMagic + (magnitude << kShift)) - std::bit_cast<float>(kMagic);
  const std::uint32_t is_subnormal = mask_below(magnitude, 1U << Format::kMantissaBits);
  return std::bit_cast<float>(
      choose(is_subnormal, std::bit_cast<std::uint32_t>(subnormal), normal) | sign);
}

// Returns the value of any code.
template <DType fp8>
[[gnu::always_inline]] inline float widen_fp8(std::uint32_t code) {
  using Format = Fp8Format<fp8>;
  const std::uint32_t magnitude = code & 0x7FU;
  constexpr std::uint32_t kNan = kInfinityBits | 0x400000U;
  constexpr std::uint32_t kNanFrom =
      Format::kInfinityCode == Format::kNanCode ? 0 : Format::kInfinityCode + 1;
  const std::uint32_t special = choose(mask_below(magnitude, kNanFrom), kInfinityBits, kNan);
  const std::uint32_t sign = (code & 0x80U) << 24;
  const auto finite = std::bit_cast<std::uint32_t>(widen_finite_fp8<fp8>(code));
  return std::bit_cast<float>(
      choose(mask_below(magnitude, Format::kMaxCode + 1), finite, special | sign));
}

}  // namespace octile::reference
