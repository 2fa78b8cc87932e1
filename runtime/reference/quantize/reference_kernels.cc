#include "runtime/reference/quantize/reference_kernels.h"

#include <algorithm>

#include "runtime/reference/cast_bits.h"
#include "runtime/reference/multiversion.h"

namespace octile::reference {
namespace {

OCTILE_MULTIVERSION
void widen_all_bf16(const std::uint16_t* x, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = widen_bf16(x[i]);
}

OCTILE_MULTIVERSION
void widen_all_fp16(const std::uint16_t* x, std::int64_t count, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = widen_fp16(x[i]);
}

// Masks instead of choosing, because GCC does not vectorise a maximum of chosen values.
std::uint32_t finite_magnitude(float x) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x) & kMagnitude;
  return magnitude & (0U - static_cast<std::uint32_t>(magnitude < kInfinityBits));
}

template <DType fp8>
std::uint8_t cast_one(float x, float encode) {
  const auto product = std::bit_cast<std::uint32_t>(x * encode);
  return static_cast<std::uint8_t>(
      by_class<fp8>(std::bit_cast<std::uint32_t>(x), finite_to_fp8<fp8>(product)));
}

OCTILE_MULTIVERSION
void cast_scaled_e4m3(const float* x, const float* encode, std::int64_t count, std::uint8_t* q) {
  for (std::int64_t i = 0; i < count; ++i) q[i] = cast_one<DType::kE4M3>(x[i], encode[i]);
}

OCTILE_MULTIVERSION
void cast_scaled_e5m2(const float* x, const float* encode, std::int64_t count, std::uint8_t* q) {
  for (std::int64_t i = 0; i < count; ++i) q[i] = cast_one<DType::kE5M2>(x[i], encode[i]);
}

}  // namespace

void widen(const void* x, DType dtype, std::int64_t offset, std::int64_t count, float* out) {
  if (dtype == DType::kBF16) {
    widen_all_bf16(static_cast<const std::uint16_t*>(x) + offset, count, out);
  } else if (dtype == DType::kFP16) {
    widen_all_fp16(static_cast<const std::uint16_t*>(x) + offset, count, out);
  } else {
    std::copy_n(static_cast<const float*>(x) + offset, count, out);
  }
}

OCTILE_MULTIVERSION
void round_to_bf16(float* x, std::int64_t count) {
  constexpr std::uint32_t kNan = 0x7FFF0000U;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    const std::uint32_t rounded = (bits + 0x7FFFU + (bits >> 16 & 1U)) & 0xFFFF0000U;
    x[i] = std::bit_cast<float>((bits & kMagnitude) > kInfinityBits ? kNan : rounded);
  }
}

OCTILE_MULTIVERSION
std::uint32_t finite_amax_bits(const float* x, std::int64_t count) {
  std::uint32_t amax = 0;
  for (std::int64_t i = 0; i < count; ++i) amax = std::max(amax, finite_magnitude(x[i]));
  return amax;
}

OCTILE_MULTIVERSION
void update_amax_bits(const float* x, std::int64_t count, std::uint32_t* amax) {
  for (std::int64_t i = 0; i < count; ++i) amax[i] = std::max(amax[i], finite_magnitude(x[i]));
}

OCTILE_MULTIVERSION
std::uint32_t largest_of(const std::uint32_t* x, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, x[i]);
  return largest;
}

OCTILE_MULTIVERSION
std::int64_t count_nonfinite(const float* x, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    found += (std::bit_cast<std::uint32_t>(x[i]) & kMagnitude) >= kInfinityBits ? 1 : 0;
  }
  return found;
}

void cast_scaled(const float* x, const float* encode, DType fp8, std::int64_t count,
                 std::uint8_t* q) {
  if (fp8 == DType::kE4M3) {
    cast_scaled_e4m3(x, encode, count, q);
  } else {
    cast_scaled_e5m2(x, encode, count, q);
  }
}

}  // namespace octile::reference
