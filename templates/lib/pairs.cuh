// Pairs of fp32 in shared and global memory. PTX ISA 9.0, "Data Movement and Conversion
// Instructions". Addresses are 8-byte aligned.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

struct alignas(8) Floats2 {
  float value[2];
};

// ld.volatile.shared.v2.f32;  PTX 1.0. As load_shared_f32.
__device__ __forceinline__ Floats2 load_shared_8(u32 address) {
  Floats2 v;
  asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.value[0]), "=f"(v.value[1])
               : "r"(address)
               : "memory");
  return v;
}

// st.shared.v2.f32;  PTX 1.0.
__device__ __forceinline__ void store_shared_8(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

// ld.global.v2.f32;  PTX 1.0.
__device__ __forceinline__ Floats2 load_global_8(const float* p) {
  Floats2 v;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.value[0]), "=f"(v.value[1])
               : "l"(p)
               : "memory");
  return v;
}

// @condition st.global.v2.f32;  PTX 1.0.
__device__ __forceinline__ void store_global_8_if(bool condition, float* p, float x, float y) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %3, 0;\n"
      "@p st.global.v2.f32 [%0], {%1, %2};\n"
      "}" ::"l"(p),
      "f"(x), "f"(y), "r"(static_cast<int>(condition))
      : "memory");
}
