#include "runtime/reference/quantize/reference_scale.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "generator/quantize/config.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/cast_bits.h"

namespace octile::reference {
namespace {

constexpr int kMantissaBits = 23;
// Mantissa of the largest finite value, which is 1.75 times a power of two in both formats.
constexpr std::uint32_t kMaxMantissa = 0x600000U;
constexpr std::uint32_t kMantissaMask = 0x7FFFFFU;
constexpr std::uint8_t kE8M0Nan = 0xFF;  // OCP MX 1.0, section 5.4.1

// Returns the exponent of the format's largest power of two: 2^8 for 448, 2^15 for 57344.
int max_exponent(DType fp8) { return fp8 == DType::kE4M3 ? 8 : 15; }

// Returns the E8M0 exponent of a block's scale: amax divided by the format's range, as a biased
// exponent. If the amax is so small that the result would be negative, returns 0, which means
// 2^-127.
int e8m0_exponent(float amax, const QuantizeProblem& problem) {
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  const bool beyond = (bits & kMantissaMask) > kMaxMantissa;
  const bool up = problem.e8m0_rounding == E8M0Rounding::kUp && beyond;
  const int exponent = static_cast<int>(bits >> kMantissaBits) + (up ? 1 : 0);
  return std::max(0, exponent - max_exponent(problem.q.dtype));
}

}  // namespace

float encode_scale(float amax, const QuantizeProblem& problem) {
  amax = std::max(amax, problem.amax_epsilon);
  if (amax == 0.0F) return 1.0F;
  if (problem.q.scale == ScaleFormat::kE8M0) {
    return power_of_exponent(254U - static_cast<std::uint32_t>(e8m0_exponent(amax, problem)));
  }
  const bool power_of_two =
      problem.q.scale == ScaleFormat::kF32Pow2 || problem.q.scale == ScaleFormat::kUe8m0x4;
  return encode_of_amax(amax, problem.q.dtype, value_type(problem), power_of_two);
}

float decode_scale(float encode) { return 1.0F / encode; }

void store_scale(void* scales, ScaleFormat format, std::int64_t index, float encode) {
  const float decode = decode_scale(encode);
  switch (format) {
    case ScaleFormat::kBF16:
      static_cast<std::uint16_t*>(scales)[index] = float_to_bf16(decode);
      return;
    case ScaleFormat::kE8M0:
    case ScaleFormat::kUe8m0x4:  // exponent 0 means 2^-127, which is subnormal in fp32
      static_cast<std::uint8_t*>(scales)[index] =
          static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(decode) >> kMantissaBits);
      return;
    default:
      static_cast<float*>(scales)[index] = decode;
  }
}

float load_scale(const void* scales, ScaleFormat format, std::int64_t index) {
  switch (format) {
    case ScaleFormat::kBF16:
      return bf16_to_float(static_cast<const std::uint16_t*>(scales)[index]);
    case ScaleFormat::kE8M0:
      if (static_cast<const std::uint8_t*>(scales)[index] == kE8M0Nan) return NAN;
      [[fallthrough]];
    case ScaleFormat::kUe8m0x4:
      return power_of_exponent(static_cast<const std::uint8_t*>(scales)[index]);
    default:
      return static_cast<const float*>(scales)[index];
  }
}

void fill_scales_with_ones(const QuantizedLayout& layout, const TensorType& type,
                           std::int64_t scale_ld, void* scales) {
  const std::int64_t count = std::min(layout.scales.inner, scale_ld);
  const std::int64_t per_scale = type.scale == ScaleFormat::kUe8m0x4 ? 4 : 1;
  for (std::int64_t run = 0; run < layout.scales.outer; ++run) {
    for (std::int64_t i = 0; i < count * per_scale; ++i) {
      store_scale(scales, type.scale, run * scale_ld * per_scale + i, 1.0F);
    }
  }
}

}  // namespace octile::reference
