// Two fp32 operations by one instruction, each rounded as by itself. PTX ISA 8.6, "Floating Point
// Instructions: add, mul, fma" with .f32x2; sm_100. They only use registers, so any thread may call
// them. gemm/registers.cuh has the same names by two instructions.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace two {

// add.rn.f32x2: x += a, y += b.
__device__ __forceinline__ void add(float& x, float& y, float a, float b) {
  asm("{\n"
      ".reg .b64 x, a;\n"
      "mov.b64 x, {%0, %1};\n"
      "mov.b64 a, {%2, %3};\n"
      "add.rn.f32x2 x, x, a;\n"
      "mov.b64 {%0, %1}, x;\n"
      "}"
      : "+f"(x), "+f"(y)
      : "f"(a), "f"(b));
}

// fma.rn.f32x2: x = a * u + x, y = b * v + y, each with one rounding.
__device__ __forceinline__ void multiply_add(float& x, float& y, float a, float b, float u,
                                             float v) {
  asm("{\n"
      ".reg .b64 x, a, u;\n"
      "mov.b64 x, {%0, %1};\n"
      "mov.b64 a, {%2, %3};\n"
      "mov.b64 u, {%4, %5};\n"
      "fma.rn.f32x2 x, a, u, x;\n"
      "mov.b64 {%0, %1}, x;\n"
      "}"
      : "+f"(x), "+f"(y)
      : "f"(a), "f"(b), "f"(u), "f"(v));
}

// mul.rn.f32x2, fma.rn.f32x2: x = a * (scale * u) + x, y = b * (scale * v) + y.
__device__ __forceinline__ void multiply_add_scaled(float& x, float& y, float a, float b,
                                                    float scale, float u, float v) {
  asm("{\n"
      ".reg .b64 u, s;\n"
      "mov.b64 u, {%0, %1};\n"
      "mov.b64 s, {%2, %2};\n"
      "mul.rn.f32x2 u, s, u;\n"
      "mov.b64 {%0, %1}, u;\n"
      "}"
      : "+f"(u), "+f"(v)
      : "f"(scale));
  multiply_add(x, y, a, b, u, v);
}

}  // namespace two
