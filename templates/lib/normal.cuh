// The standard normal distribution for generated expressions: normcdf and normpdf, by fp32
// operations in a fixed order, so that the host reference computes the same bits
// (generator/core/elementary.cc has the same text). docs/numerics.md states their errors. They have
// no branch. normcdf takes 36 instructions, normpdf 20, of which both of one argument share 18.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/math.cuh"
#endif

namespace math {

// Beyond it, results would be subnormal.
constexpr float kNormEnd = 12.9f;

// Returns exp(-a^2 / 2) as a Power, for a in 0..kNormEnd. Half of the square, and what its rounding
// left, are exact.
__device__ __forceinline__ Power gauss(float a) {
  const float square = __fmul_rn(a, a);
  const float left = __fmaf_rn(a, a, -square);
  const Power e = power_of(__fmul_rn(-0.5f, square));
  return {__fmaf_rn(e.fraction, __fmul_rn(-0.5f, left), e.fraction), e.rounded};
}

}  // namespace math

__device__ __forceinline__ float octile_normpdf(float x) {
  const math::Power e = math::gauss(octile_min(fabsf(x), math::kNormEnd));
  // The factor is 1 / sqrt(2 pi).
  return __fmul_rn(__fmul_rn(e.fraction, 0x1.988454p-2f), math::two_to(e.rounded));
}

__device__ __forceinline__ float octile_normcdf(float x) {
  const float a = octile_min(fabsf(x), math::kNormEnd);
  const math::Power e = math::gauss(a);
  // normcdf(-a) exp(a^2 / 2) = t P(t) with t = 1 / (1 + 11/32 a). P is minimax in relative error,
  // 2^-25.8.
  const float d = __fmaf_rn(a, 0x1.6p-2f, 1.0f);
  const float t = math::reciprocal(d, arithmetic::near_reciprocal(d));
  float p = -0x1.cebe22p-6f;
  p = __fmaf_rn(p, t, 0x1.2ab082p-3f);
  p = __fmaf_rn(p, t, -0x1.1a35b6p-2f);
  p = __fmaf_rn(p, t, 0x1.8f8816p-3f);
  p = __fmaf_rn(p, t, -0x1.57fd76p-5f);
  p = __fmaf_rn(p, t, 0x1.d1cbe4p-4f);
  p = __fmaf_rn(p, t, 0x1.dd23fep-4f);
  p = __fmaf_rn(p, t, 0x1.19c0bap-3f);
  p = __fmaf_rn(p, t, 0x1.18d14ap-3f);
  const float tail = __fmul_rn(__fmul_rn(e.fraction, __fmul_rn(p, t)), math::two_to(e.rounded));
  return x < 0.0f ? tail : __fsub_rn(1.0f, tail);
}
