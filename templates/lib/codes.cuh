// FP8 codes, four at a time. PTX ISA 9.0, "Data Movement and Conversion Instructions: cvt, st".
// Each function is one asm statement, because several cost NVRTC more.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

// cvt.rn.satfinite.e4m3x2.f32 d, hi, lo (2 of them);  PTX 8.1, sm_89. As cast::e4m3x2, the code of
// `a` in the lowest byte.
__device__ __forceinline__ u32 e4m3x4(float a, float b, float c, float d) {
  u32 codes;
  asm("{\n"
      ".reg .b16 lower, upper;\n"
      "cvt.rn.satfinite.e4m3x2.f32 lower, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 upper, %4, %3;\n"
      "mov.b32 %0, {lower, upper};\n"
      "}"
      : "=r"(codes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return codes;
}

// cvt.rn.satfinite.e5m2x2.f32 d, hi, lo (2 of them);  PTX 8.1, sm_89. As cast::e5m2x2.
__device__ __forceinline__ u32 e5m2x4(float a, float b, float c, float d) {
  u32 codes;
  asm("{\n"
      ".reg .b16 lower, upper;\n"
      "cvt.rn.satfinite.e5m2x2.f32 lower, %2, %1;\n"
      "cvt.rn.satfinite.e5m2x2.f32 upper, %4, %3;\n"
      "mov.b32 %0, {lower, upper};\n"
      "}"
      : "=r"(codes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return codes;
}

// st.shared.b32 (2 of them);  PTX 1.0. Stores at an address and kDistance bytes behind it, both
// multiples of 4.
template <int kDistance>
__device__ __forceinline__ void store_two_shared_4(u32 address, u32 first, u32 second) {
  asm volatile(
      "st.shared.b32 [%0], %1;\n"
      "st.shared.b32 [%0+%3], %2;" ::"r"(address),
      "r"(first), "r"(second), "n"(kDistance)
      : "memory");
}

// st.shared.u8;  PTX 1.0. Stores the lowest byte.
__device__ __forceinline__ void store_shared_1(u32 address, u32 byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(byte) : "memory");
}
