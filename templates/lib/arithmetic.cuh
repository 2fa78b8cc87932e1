// fp32 operations that CUDA C++ has no name for. PTX ISA 9.0, "Floating Point Instructions: min,
// max, rcp". They only use registers, so any thread may call them.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace arithmetic {

// min.NaN.f32 d, a, b;  PTX 7.0, sm_80. NaN if either is; -0 < +0.
__device__ __forceinline__ float min(float a, float b) {
  float d;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

// max.NaN.f32 d, a, b;  PTX 7.0, sm_80. As min.
__device__ __forceinline__ float max(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

// max.NaN.xorsign.abs.bf16x2 d, a, b;  PTX 7.2, sm_86. The larger magnitude of each half under the
// product of the signs, which costs less than to drop them; NaN (0x7fff) if either is.
__device__ __forceinline__ u32 larger_bf16x2(u32 a, u32 b) {
  u32 d;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// max.NaN.xorsign.abs.f16x2 d, a, b;  PTX 7.2, sm_86. As larger_bf16x2.
__device__ __forceinline__ u32 larger_fp16x2(u32 a, u32 b) {
  u32 d;
  asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// min.u16x2 d, a, b;  PTX 8.0, sm_90. The minimum of each half.
__device__ __forceinline__ u32 min_u16x2(u32 a, u32 b) {
  u32 d;
  asm("min.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// max.u16x2 d, a, b;  PTX 8.0, sm_90. As min_u16x2.
__device__ __forceinline__ u32 max_u16x2(u32 a, u32 b) {
  u32 d;
  asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// rcp.approx.ftz.f32 d, a;  PTX 1.4, any SM. Off by at most 1 ulp; subnormals count as zeros.
__device__ __forceinline__ float near_reciprocal(float a) {
  float d;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
}

}  // namespace arithmetic
