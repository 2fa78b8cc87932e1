// Warp-level matrix multiply of FP8 with scales in the instruction: on GeForce cards of compute
// capability 12.x it has twice the rate of the one without scales. PTX ISA 9.0, "Warp Level Matrix
// Instructions: mma", block scaling.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/matrix_operands.cuh"
#endif

namespace mma {

// mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.<a>.<b>.f32.ue8m0
// d, a, b, d, scales of a, {byte, 0}, scales of b, {byte, 0};  PTX 8.7, sm_120a. Operands are those
// of mma.sync without scales (mma.cuh). Every product is multiplied by the scale of its row of A
// and that of its column of B, bytes e that stand for 2^(e - 127), and 255 for NaN. Byte kByte of
// a lane's word is, by thread-id 0 ("Block Scaling for mma.sync"; CUTLASS, mma_traits_sm120.hpp,
// SFALayout and SFBLayout; Triton, getSM120DotScaledScaleLayout):
//   scales_a  the scale of row lane / 4 + 8 * (lane % 2); of lanes with lane % 4 < 2 alone
//   scales_b  the scale of column lane / 4; of lanes with lane % 4 == 0 alone
#define OCTILE_MMA(types)                                                                     \
  asm("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32." types \
      ".f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, "    \
      "{%12, 0}, {%11}, {%12, 0};"                                                            \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scales_a),          \
        "r"(scales_b), "n"(kByte))

template <Element kA, Element kB, int kByte>
__device__ __forceinline__ void multiply_scaled(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1,
                                                u32 scales_a, u32 scales_b) {
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

// The same with scales that are 1.
template <Element kA, Element kB>
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply_scaled<kA, kB, 0>(d, a, b0, b1, 0x7f7f7f7fu, 0x7f7f7f7fu);
}

}  // namespace mma
