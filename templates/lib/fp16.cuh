// Sums as fp16, rounded to nearest even. PTX ISA 9.0, "Data Movement and Conversion Instructions".
// warpgroup.cuh has the same for bf16.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

// cvt.rn.f16x2.f32 r, hi, lo (4 of them); stmatrix.sync.aligned.m8n8.x4.shared.b16 [addr], {r0,
// r1, r2, r3};  PTX 7.8, sm_90. The lanes' addresses and values are those of store_matrix_bf16_x4.
__device__ __forceinline__ void store_matrix_fp16_x4(u32 address, const float* v) {
  asm volatile(
      "{\n"
      ".reg .b32 r<4>;\n"
      "cvt.rn.f16x2.f32 r0, %2, %1;\n"
      "cvt.rn.f16x2.f32 r1, %4, %3;\n"
      "cvt.rn.f16x2.f32 r2, %6, %5;\n"
      "cvt.rn.f16x2.f32 r3, %8, %7;\n"
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {r0, r1, r2, r3};\n"
      "}" ::"r"(address),
      "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7])
      : "memory");
}

// cvt.rn.f16x2.f32 d, hi, lo;  PTX 7.0, sm_80. Converts two fp32, `hi` into the upper half.
__device__ __forceinline__ u32 pack_fp16x2(float lo, float hi) {
  u32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}
