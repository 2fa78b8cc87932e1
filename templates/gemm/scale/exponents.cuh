// The exponent of a scale, in the form that scaling instructions read: E8M0, in the lowest byte of
// a word. Other bytes are not read.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/scale/format.cuh"
#endif

namespace gemm::scale {

__device__ __forceinline__ u32 exponent_of(Fp32, float word, int) {
  return __float_as_uint(word) >> 23;
}
__device__ __forceinline__ u32 exponent_of(Ue8m0x4, float word, int block) {
  return __float_as_uint(word) >> (block % 4 * 8);
}
template <typename Codes>  // all four of MX, as they are
__device__ __forceinline__ u32 exponent_of(Codes, float word, int) {
  return __float_as_uint(word);
}

}  // namespace gemm::scale
