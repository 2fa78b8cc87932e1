// Conditional loads of fp32 from global memory that a preceding kernel may have written. PTX ISA
// 9.0, "Data Movement and Conversion Instructions". They return 0 without reading if the condition
// is false. They are no .nc loads, which ptxas moves before griddepcontrol.wait.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/pairs.cuh"
#include "lib/types.cuh"
#endif

// @condition ld.global.f32;  PTX 1.0.
__device__ __forceinline__ float load_global_4_if(bool condition, const float* p) {
  float value;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "mov.f32 %0, 0f00000000;\n"
      "@p ld.global.f32 %0, [%1];\n"
      "}"
      : "=f"(value)
      : "l"(p), "r"(static_cast<int>(condition))
      : "memory");
  return value;
}

// @condition ld.global.v2.f32;  PTX 1.0. The address is 8-byte aligned.
__device__ __forceinline__ Floats2 load_global_8_if(bool condition, const float* p) {
  Floats2 v;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %3, 0;\n"
      "mov.f32 %0, 0f00000000;\n"
      "mov.f32 %1, 0f00000000;\n"
      "@p ld.global.v2.f32 {%0, %1}, [%2];\n"
      "}"
      : "=f"(v.value[0]), "=f"(v.value[1])
      : "l"(p), "r"(static_cast<int>(condition))
      : "memory");
  return v;
}
