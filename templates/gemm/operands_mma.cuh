// A consumer thread's operands for mma.sync: the rows that it passes to ldmatrix.
//
// Rows are 128 bytes in the 128-byte swizzle: their 16-byte units are XORed with row % 8. Tiles of
// A begin at a multiple of 16 rows and those of B at a multiple of 8, so that a lane's row is lane
// % 8 within a swizzle atom of 8, and K step s, 32 bytes further, is the address XOR 32 * s.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/registers.cuh"
#endif

namespace gemm {

struct Operands {
  u32 a;  // stage 0: row lane % 16 of the warp's, its left or right half of a step's 32 bytes
  u32 b;  // stage 0: row lane % 8 + lane / 16 * 8 of the warp's first 16, likewise

  __device__ __forceinline__ Operands(const SharedMemory& smem, int index, int warp, int lane,
                                      int first_column)
      : a(smem.a(0) + static_cast<u32>((index * kRowsPerConsumer + warp * 16 + lane % 16) * 128 +
                                       ((lane / 16) ^ (lane % 8)) * 16)),
        b(smem.b(0) + static_cast<u32>((first_column + lane % 8 + lane / 16 * 8) * 128 +
                                       ((lane / 8 % 2) ^ (lane % 8)) * 16)) {}
};

}  // namespace gemm
