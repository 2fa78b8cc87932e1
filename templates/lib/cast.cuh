// Conversions between fp32 and the 8- and 16-bit types. PTX ISA 9.0, "Data Movement and Conversion
// Instructions: cvt". They only use registers, so any thread may call them. None flushes
// subnormals.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace cast {

// cvt.rn.satfinite.e4m3x2.f32 d, a, b;  PTX 8.1, sm_89. `upper` goes to the upper byte. Nearest
// even on the E4M3 grid; beyond the maximum, infinity included, +-kMaxE4M3; NaN gives 0x7f.
__device__ __forceinline__ u16 e4m3x2(float upper, float lower) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(upper), "f"(lower));
  return codes;
}

// cvt.rn.satfinite.e5m2x2.f32 d, a, b;  PTX 8.1, sm_89. As e4m3x2; maximum +-kMaxE5M2.
__device__ __forceinline__ u16 e5m2x2(float upper, float lower) {
  u16 codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(upper), "f"(lower));
  return codes;
}

// cvt.rn.f16x2.e4m3x2 d, a;  PTX 8.1, sm_89. Exact, the lower code in the lower half. NaN codes
// give NaN.
__device__ __forceinline__ u32 from_e4m3x2(u16 codes) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return halves;
}

// cvt.rn.f16x2.e5m2x2 d, a;  PTX 8.1, sm_89. As from_e4m3x2; infinities stay.
__device__ __forceinline__ u32 from_e5m2x2(u16 codes) {
  u32 halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return halves;
}

// cvt.rn.f16x2.f32 d, a, b;  PTX 7.0, sm_80. `upper` goes to the upper half. Nearest even; beyond
// the maximum infinity; NaN gives 0x7fff.
__device__ __forceinline__ u32 to_fp16x2(float upper, float lower) {
  u32 halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(upper), "f"(lower));
  return halves;
}

// cvt.rn.bf16x2.f32 d, a, b;  PTX 7.0, sm_80. As to_fp16x2.
__device__ __forceinline__ u32 to_bf16x2(float upper, float lower) {
  u32 halves;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(upper), "f"(lower));
  return halves;
}

// cvt.rn.bf16x2.f32 d, a, b;  PTX 7.0, sm_80. Rounds the fp32 values of two words to bf16, which
// are the upper halves of the results. As to_bf16x2. One statement takes a register less than
// to_bf16x2 and its halves do.
__device__ __forceinline__ void round_to_bf16(u32& lower, u32& upper) {
  asm("{.reg .b32 both; cvt.rn.bf16x2.f32 both, %1, %0; shl.b32 %0, both, 16; "
      "and.b32 %1, both, 0xffff0000;}"
      : "+r"(lower), "+r"(upper));
}

// cvt.f32.f16 d, a;  PTX 2.0, any SM. Exact.
__device__ __forceinline__ float from_fp16(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// bf16 is the upper half of an fp32. Exact.
__device__ __forceinline__ float from_bf16(u16 bits) {
  return __uint_as_float(static_cast<u32>(bits) << 16);
}

}  // namespace cast
