// Warp-level matrix multiply of FP8. PTX ISA 9.0, "Warp Level Matrix Instructions: mma".
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/matrix_operands.cuh"
#endif

namespace mma {

// mma.sync.aligned.m16n8k32.row.col.f32.<a>.<b>.f32 d, a, b, d;  PTX 8.4, sm_89. D[16,8] +=
// A[16,32] * B[8,32]^T. A lane's elements, g = lane / 4 and t = lane % 4:
//   d[0], d[1]  row g, columns 2 * t and 2 * t + 1; d[2], d[3] the same columns of row g + 8
//   a[0], a[1]  bytes 4 * t to 4 * t + 3 of rows g and g + 8; a[2], a[3] the same, 16 bytes further
//   b0, b1      bytes 4 * t to 4 * t + 3 of row g of B; the same, 16 bytes further
#define OCTILE_MMA(types)                                                    \
  asm("mma.sync.aligned.m16n8k32.row.col.f32." types                         \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

template <Element kA, Element kB>
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kA == kE4M3 && kB == kE4M3) {
    OCTILE_MMA("e4m3.e4m3");
  } else if constexpr (kA == kE4M3) {
    OCTILE_MMA("e4m3.e5m2");
  } else if constexpr (kB == kE4M3) {
    OCTILE_MMA("e5m2.e4m3");
  } else {
    OCTILE_MMA("e5m2.e5m2");
  }
}
#undef OCTILE_MMA

}  // namespace mma
