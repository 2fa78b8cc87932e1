// How an operand's 1x128 scales lie in memory: one fp32 for each row and K-block, or a word with
// the exponents of four consecutive K-blocks. Either way a K-block's scales are a contiguous run of
// 4 bytes a row, which TMA copies.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace gemm::scale {

struct Fp32 {
  enum : int { kBlocksOfWord = 1 };
  __device__ static __forceinline__ float decode(float word, int) { return word; }
};

// Byte i of a word is the exponent of K-block 4 * j + i: scale = 2^(exponent - 127). 0 is subnormal
// in fp32, and 255 infinite.
struct Ue8m0x4 {
  enum : int { kBlocksOfWord = 4 };
  __device__ static __forceinline__ float decode(float word, int block) {
    const int exponent = static_cast<int>(__float_as_uint(word) >> (block % 4 * 8) & 0xffu);
    return __uint_as_float(static_cast<u32>(max(exponent << 23, 0x00400000)));
  }
};

}  // namespace gemm::scale
