// The functions of a generated expression that no instruction computes: exp, tanh, sigmoid, rsqrt,
// min, max. They are fp32 operations in a fixed order, so that the host reference computes the same
// bits (generator/core/elementary.cc has the same text). docs/numerics.md states their errors. They
// have no branch; a sigmoid takes 17 instructions. With the hardware's ex2.approx instead of the
// polynomial it would take 11. But ex2.approx alone is 2 ulp off and a sigmoid of it 4, while 2 are
// allowed, and no host computes its bits. A polynomial one degree lower would take 16 instructions
// and leave 29,458 arguments 3 ulp off.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/arithmetic.cuh"
#include "lib/types.cuh"
#endif

namespace math {

// log2(e), and the remainder of its rounding to fp32.
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLog2ELow = 0x1.4ae0cp-26f;
// This is 1.5 * 2^23 + 127. Adding it rounds to an integer n and leaves n + 127, the biased
// exponent of 2^n, in the lowest bits of the sum.
constexpr float kRound = 12583039.0f;
constexpr u32 kRoundBits = 0x4b40007fu;

// exp(x) = fraction * 2^n with n = rounded - kRound and a fraction in sqrt(1/2)..sqrt(2).
struct Power {
  float fraction, rounded;
};

// Returns exp(x) as a Power, for |x| up to 126.
__device__ __forceinline__ Power power_of(float x) {
  const float rounded = __fmaf_rn(x, kLog2E, kRound);
  const float n = __fsub_rn(rounded, kRound);
  const float f = __fmaf_rn(x, kLog2ELow, __fmaf_rn(x, kLog2E, -n));
  // The polynomial is minimax for 2^f on -1/2..1/2, with a relative error of 2^-29.
  float p = 0x1.41d334p-13f;
  p = __fmaf_rn(p, f, 0x1.5f456ap-10f);
  p = __fmaf_rn(p, f, 0x1.3b2dbcp-7f);
  p = __fmaf_rn(p, f, 0x1.c6aed4p-5f);
  p = __fmaf_rn(p, f, 0x1.ebfbdap-3f);
  p = __fmaf_rn(p, f, 0x1.62e43p-1f);
  return {__fmaf_rn(p, f, 1.0f), rounded};
}

// Returns 2^n, for n in -126..127.
__device__ __forceinline__ float two_to(float rounded) {
  return __uint_as_float(__float_as_uint(rounded) << 23);
}

// Returns 1 / d, correctly rounded, for d in 1..2^126 or NaN. It is the fast path of __frcp_rn
// without the test of the range.
__device__ __forceinline__ float reciprocal(float d, float near) {
  return __fmaf_rn(near, __fmaf_rn(-d, near, 1.0f), near);
}

// Returns 1 / (1 + exp(x)).
__device__ __forceinline__ float logistic(const Power& e) {
  const float d = __fmaf_rn(e.fraction, two_to(e.rounded), 1.0f);
  return reciprocal(d, arithmetic::near_reciprocal(d));
}

}  // namespace math

__device__ __forceinline__ float octile_min(float x, float y) { return arithmetic::min(x, y); }
__device__ __forceinline__ float octile_max(float x, float y) { return arithmetic::max(x, y); }
__device__ __forceinline__ float octile_rsqrt(float x) { return __frsqrt_rn(x); }

__device__ __forceinline__ float octile_exp(float x) {
  // Beyond these bounds exp is infinite, or below half of the smallest subnormal.
  const math::Power e = math::power_of(octile_max(octile_min(x, 89.0f), -104.0f));
  // 2^n is applied in two factors, so that only the second multiplication rounds.
  const u32 n = __float_as_uint(e.rounded) - math::kRoundBits;
  const u32 half = static_cast<u32>(static_cast<int>(n) >> 1);
  const float first = __uint_as_float((half + 127u) << 23);
  const float second = __uint_as_float((n - half + 127u) << 23);
  return __fmul_rn(__fmul_rn(e.fraction, first), second);
}

__device__ __forceinline__ float octile_sigmoid(float x) {
  // From 30 on the result rounds to 1. Below -87 it is the value at -87.
  return math::logistic(math::power_of(octile_max(octile_min(-x, 87.0f), -30.0f)));
}

__device__ __forceinline__ float octile_tanh(float x) {
  const float magnitude = fabsf(x);
  // Up to 0.55, tanh(x) = x + x t P(t) with t = x^2. P is minimax, with a relative error of
  // 2^-24.7.
  const float t = __fmul_rn(magnitude, magnitude);
  float p = 0x1.0d5036p-6f;
  p = __fmaf_rn(p, t, -0x1.af7cccp-5f);
  p = __fmaf_rn(p, t, 0x1.10cef6p-3f);
  p = __fmaf_rn(p, t, -0x1.555452p-2f);
  const float small = __fmaf_rn(__fmul_rn(magnitude, t), p, magnitude);
  // Beyond, tanh(|x|) = 1 - 2 / (1 + exp(2|x|)), which rounds to 1 from 10 on.
  const float twice = __fmul_rn(octile_min(magnitude, 10.0f), 2.0f);
  const float large = __fmaf_rn(-2.0f, math::logistic(math::power_of(twice)), 1.0f);
  const u32 sign = __float_as_uint(x) & 0x80000000u;
  return __uint_as_float(__float_as_uint(magnitude < 0.55f ? small : large) | sign);
}
