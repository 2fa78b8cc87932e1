#include "runtime/reference/cast.h"

#include <cmath>
#include <limits>

#include "runtime/reference/cast_bits.h"

namespace octile::reference {
namespace {

template <DType fp8>
std::uint8_t cast_to(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint8_t>(by_class<fp8>(bits, finite_to_fp8<fp8>(bits)));
}

}  // namespace

std::uint8_t nan_code(DType fp8) {
  return static_cast<std::uint8_t>(fp8 == DType::kE4M3 ? Fp8Format<DType::kE4M3>::kNanCode
                                                       : Fp8Format<DType::kE5M2>::kNanCode);
}

std::uint8_t to_fp8(float value, DType fp8) {
  return fp8 == DType::kE4M3 ? cast_to<DType::kE4M3>(value) : cast_to<DType::kE5M2>(value);
}

float encode_of_amax(float amax, DType fp8, DType source, bool power_of_two) {
  if (amax == 0.0F) return 1.0F;
  float encode = max_finite(fp8) / amax;
  if (std::isinf(encode)) encode = max_finite(source);
  if (!power_of_two) return encode;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(encode) & (kSignBit | kInfinityBits));
}

float from_fp8(std::uint8_t code, DType fp8) {
  return fp8 == DType::kE4M3 ? widen_fp8<DType::kE4M3>(code) : widen_fp8<DType::kE5M2>(code);
}

float bf16_to_float(std::uint16_t bits) { return widen_bf16(bits); }
float fp16_to_float(std::uint16_t bits) { return widen_fp16(bits); }

std::uint16_t float_to_bf16(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

std::uint16_t float_to_fp16(float value) {
  if (std::isnan(value)) return 0x7FFF;
  constexpr std::uint32_t kFirstToInfinity = 0x477FF000U;  // 65520, halfway above 65504
  constexpr std::uint32_t kSmallestNormal = 0x38800000U;   // 2^-14
  constexpr std::uint32_t kSubnormalMagic = 0x3F000000U;   // 0.5, whose last bit is 2^-24
  constexpr std::uint32_t kRebias = (127U - 15U) << 10;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & kMagnitude;
  std::uint32_t half = 0;
  if (magnitude >= kFirstToInfinity) {
    half = 0x7C00U;
  } else if (magnitude < kSmallestNormal) {
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                        std::bit_cast<float>(kSubnormalMagic)) -
           kSubnormalMagic;
  } else {
    half = ((magnitude + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13) - kRebias;
  }
  return static_cast<std::uint16_t>(half | ((bits & kSignBit) >> 16));
}

float load_as_float(const void* array, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kE4M3:
    case DType::kE5M2:
      return from_fp8(static_cast<const std::uint8_t*>(array)[index], dtype);
    case DType::kBF16:
      return widen_bf16(static_cast<const std::uint16_t*>(array)[index]);
    case DType::kFP16:
      return widen_fp16(static_cast<const std::uint16_t*>(array)[index]);
    case DType::kFP32:
      return static_cast<const float*>(array)[index];
  }
  return std::numeric_limits<float>::quiet_NaN();
}

}  // namespace octile::reference
