// Conversions between fp32 and the narrow types. PTX ISA 9.0, "Data Movement and Conversion
// Instructions: cvt". Pure register operations: no fence, no clobber, any thread. None flushes
// subnormals.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace cast {

// cvt.rn.satfinite.e4m3x2.f32 d, a, b;  PTX 8.1, sm_89. `upper` goes to the upper byte. Nearest
// even on the E4M3 grid; beyond the maximum, infinity included, +-448; NaN gives 0x7f.
__device__ __forceinline__ u16 e4m3x2(float upper, float lower) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(upper), "f"(lower));
  return codes;
}

// cvt.rn.satfinite.e5m2x2.f32 d, a, b;  PTX 8.1, sm_89. As e4m3x2; maximum +-57344.
__device__ __forceinline__ u16 e5m2x2(float upper, float lower) {
  u16 codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(upper), "f"(lower));
  return codes;
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
