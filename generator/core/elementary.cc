#include "generator/core/elementary.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace octile::elementary {
namespace {

// log2(e), and the error of its rounding to fp32.
constexpr float kLog2E = 0x1.715476p+0F;
constexpr float kLog2ELow = 0x1.4ae0cp-26F;

// 1.5 * 2^23 + 127: adding it rounds to an integer n and leaves n + 127, the biased exponent of
// 2^n, in the lowest bits of the sum.
constexpr float kRound = 12583039.0F;
constexpr std::uint32_t kRoundBits = 0x4b40007fU;
constexpr int kMantissaBits = 23;

// exp(x) = fraction * 2^n with n = rounded - kRound and a fraction in sqrt(1/2)..sqrt(2).
struct Power {
  float fraction = 0;
  float rounded = 0;
};

// |x| <= 126.
Power power_of(float x) {
  const float rounded = std::fma(x, kLog2E, kRound);
  const float n = rounded - kRound;
  const float f = std::fma(x, kLog2ELow, std::fma(x, kLog2E, -n));
  // Minimax in relative error for 2^f on -1/2..1/2: 2^-29.
  float p = 0x1.41d334p-13F;
  p = std::fma(p, f, 0x1.5f456ap-10F);
  p = std::fma(p, f, 0x1.3b2dbcp-7F);
  p = std::fma(p, f, 0x1.c6aed4p-5F);
  p = std::fma(p, f, 0x1.ebfbdap-3F);
  p = std::fma(p, f, 0x1.62e43p-1F);
  return {std::fma(p, f, 1.0F), rounded};
}

// 2^n, n in -126..127.
float two_to(float rounded) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) << kMantissaBits);
}

// exp(-a^2 / 2), a in 0..12.9. Half of the square and what its rounding left are exact.
Power gauss(float a) {
  const float square = a * a;
  const float left = std::fma(a, a, -square);
  const Power e = power_of(-0.5F * square);
  return {std::fma(e.fraction, -0.5F * left, e.fraction), e.rounded};
}

// Where normcdf and normpdf end, because the results beyond would be subnormal.
constexpr float kNormEnd = 12.9F;

}  // namespace

float exp(float x) {
  // Outside this range exp is infinite or less than half of the smallest subnormal.
  const Power e = power_of(max(min(x, 89.0F), -104.0F));
  // 2^n is applied as two factors, so that only the second multiplication rounds.
  const std::uint32_t n = std::bit_cast<std::uint32_t>(e.rounded) - kRoundBits;
  const auto half = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> 1);
  const float first = std::bit_cast<float>((half + 127) << kMantissaBits);
  const float second = std::bit_cast<float>((n - half + 127) << kMantissaBits);
  return e.fraction * first * second;
}

float sigmoid(float x) {
  // The result rounds to 1 from x = 30 on.
  const Power e = power_of(max(min(-x, 87.0F), -30.0F));
  return 1.0F / std::fma(e.fraction, two_to(e.rounded), 1.0F);
}

float tanh(float x) {
  const float magnitude = std::fabs(x);
  // Minimax in relative error for tanh(x) = x + x t P(t), t = x^2, up to 0.55: 2^-24.7.
  const float t = magnitude * magnitude;
  float p = 0x1.0d5036p-6F;
  p = std::fma(p, t, -0x1.af7cccp-5F);
  p = std::fma(p, t, 0x1.10cef6p-3F);
  p = std::fma(p, t, -0x1.555452p-2F);
  const float small = std::fma(magnitude * t, p, magnitude);
  // The result is 1 - 2 / (1 + exp(2|x|)), which rounds to 1 from |x| = 10 on.
  const float twice = min(magnitude, 10.0F) * 2;
  const Power e = power_of(twice);
  const float r = 1.0F / std::fma(e.fraction, two_to(e.rounded), 1.0F);
  const float large = std::fma(-2.0F, r, 1.0F);
  return std::copysign(magnitude < 0.55F ? small : large, x);
}

float normpdf(float x) {
  const Power e = gauss(min(std::fabs(x), kNormEnd));
  return e.fraction * 0x1.988454p-2F * two_to(e.rounded);  // 1 / sqrt(2 pi)
}

float normcdf(float x) {
  const float a = min(std::fabs(x), kNormEnd);
  const Power e = gauss(a);
  // Minimax in relative error for normcdf(-a) exp(a^2 / 2) = t P(t), t = 1 / (1 + 11/32 a):
  // 2^-25.8.
  const float t = 1.0F / std::fma(a, 0x1.6p-2F, 1.0F);
  float p = -0x1.cebe22p-6F;
  p = std::fma(p, t, 0x1.2ab082p-3F);
  p = std::fma(p, t, -0x1.1a35b6p-2F);
  p = std::fma(p, t, 0x1.8f8816p-3F);
  p = std::fma(p, t, -0x1.57fd76p-5F);
  p = std::fma(p, t, 0x1.d1cbe4p-4F);
  p = std::fma(p, t, 0x1.dd23fep-4F);
  p = std::fma(p, t, 0x1.19c0bap-3F);
  p = std::fma(p, t, 0x1.18d14ap-3F);
  const float tail = e.fraction * (p * t) * two_to(e.rounded);
  return x < 0 ? tail : 1.0F - tail;
}

// Computed in double and rounded once. For no fp32 argument does the result in double lie so close
// to a tie of fp32 that the second rounding goes wrong; a test tries every significand.
float rsqrt(float x) { return static_cast<float>(1 / std::sqrt(static_cast<double>(x))); }

float min(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<float>::quiet_NaN();
  if (x == y) return std::signbit(x) ? x : y;
  return x < y ? x : y;
}

float max(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<float>::quiet_NaN();
  if (x == y) return std::signbit(x) ? y : x;
  return x < y ? y : x;
}

}  // namespace octile::elementary
