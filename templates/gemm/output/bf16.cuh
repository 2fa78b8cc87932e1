// Element of an output policy: D in bf16, rounded to nearest even.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#include "lib/sentry.cuh"
#endif

namespace gemm::output {

struct Bf16 {
  using Stored = u16;
  enum : int { kAdds = 0 };

  __device__ static __forceinline__ bool put_if(bool exist, u16* p, float x, float y) {
    if (exist) *reinterpret_cast<u32*>(p) = pack_bf16x2(x, y);
    return !exist | (is_finite(x) & is_finite(y));
  }
  // From the midpoint between the largest bf16 and 2^128 on, a sum rounds to infinity.
  __device__ static __forceinline__ bool is_finite(float x) {
    return fabsf(x) < __uint_as_float(0x7f7f8000u);
  }
  __device__ static __forceinline__ void pack(const float* sums, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = pack_bf16x2(sums[2 * i], sums[2 * i + 1]);
  }
  __device__ static __forceinline__ u32 see(u32 pair, u32 seen) { return see_bf16x2(pair, seen); }
  // Stores 8 x 8 elements of each of four column groups (stmatrix) to shared memory.
  __device__ static __forceinline__ void put_matrices(u32 address, const float* sums) {
    store_matrix_bf16_x4(address, sums);
  }
};

}  // namespace gemm::output
