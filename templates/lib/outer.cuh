// An outer product by the tensor core: bf16 WGMMA of which only the first element of K is used.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/wgmma.cuh"
#endif

namespace wgmma {

// Returns the low half of the matrix descriptor of a K-major tile of bf16 without swizzle (PTX ISA
// "Matrix Descriptor"): 8 rows of 16 bytes of K, 128 bytes further (the leading offset) as much of
// the other half of K. `address` is 16-byte aligned. In a cluster its upper bits are the CTA's
// rank, which would be taken for a part of the offset.
__device__ __forceinline__ u32 outer_descriptor(u32 address) {
  return (address >> 4 & 0x3fffu) | (128u >> 4 << 16);
}
// The high half: 256 bytes (the stride) from 8 rows to the next, >> 4; swizzle mode 0.
#define OCTILE_OUTER_DESCRIPTOR_HIGH "0x10"

// wgmma.fence; wgmma.mma_async.sync.aligned.m64nNk16.f32.bf16.bf16 d, a-desc, b-desc, 0, 1, 1, 0,
// 0;  PTX 8.0, sm_90a. D[64,N] = A[64,16] * B[N,16]^T. It belongs to the group that the next
// statement commits. d is as Mma's, a and b are low halves of descriptors (outer_descriptor).
template <int kN>
struct MmaOuter;

#define OCTILE_MMA_OUTER(n, a_operand, b_operand)                                      \
  template <>                                                                          \
  struct MmaOuter<n> {                                                                 \
    __device__ static __forceinline__ void issue(float (&d)[(n) / 2], u32 a, u32 b) {  \
      asm volatile(                                                                    \
          "{\n.reg .pred set;\n.reg .b32 high;\n.reg .b64 a, b;\n"                     \
          "mov.b32 high, " OCTILE_OUTER_DESCRIPTOR_HIGH ";\nmov.b64 a, {" a_operand    \
          ", high};\nmov.b64 b, {" b_operand                                           \
          ", high};\nsetp.ne.b32 set, 0, 0;\nwgmma.fence.sync.aligned;\n"              \
          "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" OCTILE_TEXT_##n \
          "}, a, b, set, 1, 1, 0, 0;\n}"                                               \
          : OCTILE_ARGS_##n                                                            \
          : "r"(a), "r"(b)                                                             \
          : "memory");                                                                 \
    }                                                                                  \
  };
// Specialises MmaOuter for one n.
#define OCTILE_INSTANTIATE_MMA_OUTER(n) OCTILE_MMA_OUTER_OPERANDS(n, OCTILE_OPERANDS(n))
#define OCTILE_MMA_OUTER_OPERANDS(n, ...) OCTILE_MMA_OUTER(n, __VA_ARGS__)

}  // namespace wgmma
