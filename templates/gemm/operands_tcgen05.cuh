// Operands of tcgen05: descriptors of shared memory, and a consumer thread's tensor memory.
//
// PTX ISA, "tcgen05 Matrix Descriptors" (shared-memory descriptor) and "Instruction descriptor".
// The numbers of the tables are written out here, and tests compare them with a second table.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tensor_memory.cuh"
#define OCTILE_MMA_TYPES tcgen05::kE4M3, tcgen05::kE4M3
#endif

namespace gemm {

// The low half of the descriptor of a K-major FP8 tile of 128-byte rows in the 128-byte swizzle:
// the address >> 4 in bits 0-13, and 1 in the leading offset (16-29), which a swizzle does not use.
// The tile begins at a multiple of 1024 bytes. The descriptor advances by bytes >> 4, as WGMMA's.
__device__ __forceinline__ u32 descriptor(u32 address) {
  return ((address & 0x3FFFF) >> 4) | (1u << 16);
}
// The high half: the stride between groups of 8 rows (1024 bytes) >> 4 in bits 32-45, 0b001 in bits
// 46-48, no base offset (49-51), and swizzle mode 2 (128 bytes) in bits 61-63.
enum : u32 { kDescriptorHigh = (1024 >> 4) | (1u << 14) | (2u << 29) };

// The instruction's word: fp32 sums (1 in bits 4-5), the types of A (7-9) and B (10-12), both
// K-major (15, 16), N / 8 in bits 17-22 and M / 16 in bits 24-28.
template <int kA, int kB>
__device__ __forceinline__ constexpr u32 instruction_word(int m, int n) {
  return (1u << 4) | (static_cast<u32>(kA) << 7) | (static_cast<u32>(kB) << 10) |
         (static_cast<u32>(n / 8) << 17) | (static_cast<u32>(m / 16) << 24);
}

// The word of an instruction with scales: the bytes of scales of B (4-5) and of A (29-30), the
// types of A (7-9) and B (10-12), N / 8 in bits 17-22, E8M0 scales (1 in bit 23) and M / 128 in
// bits 27-28.
template <int kA, int kB>
__device__ __forceinline__ constexpr u32 scaled_instruction_word(int m, int n, int byte) {
  return (static_cast<u32>(byte) << 4) | (static_cast<u32>(kA) << 7) |
         (static_cast<u32>(kB) << 10) | (static_cast<u32>(n / 8) << 17) | (1u << 23) |
         (static_cast<u32>(m / 128) << 27) | (static_cast<u32>(byte) << 29);
}

// The descriptor of 32 rows of 16 bytes, one behind the other and without swizzle: the address >> 4
// in bits 0-13 of the low half; in the high half the stride between groups of 8 rows (128 bytes)
// >> 4 in bits 32-45, and 0b001 in bits 46-48.
__device__ __forceinline__ u32 scale_descriptor(u32 address) { return (address & 0x3FFFF) >> 4; }
enum : u32 { kScaleDescriptorHigh = (128 >> 4) | (1u << 14) };

// A consumer reads no operands.
struct Operands {
  u32 sums;  // the consumer's columns of its product's first slot, in the warp's lanes

  __device__ __forceinline__ Operands(const SharedMemory& smem, int index, int warp, int,
                                      int first_column)
      : sums(sums::address(smem) + sums::column(index / kConsumersAcross, 0) +
             static_cast<u32>(first_column) + (static_cast<u32>(warp * 32) << 16)) {}
};

}  // namespace gemm
