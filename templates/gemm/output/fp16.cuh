// Element of an output policy: D in fp16, rounded to nearest even. A sum beyond 65504 becomes
// infinite.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#include "lib/sentry.cuh"
#endif

namespace gemm::output {

struct Fp16 {
  using Stored = u16;
  enum : int { kAdds = 0 };

  __device__ static __forceinline__ bool put_if(bool exist, u16* p, float x, float y) {
    if (exist) *reinterpret_cast<u32*>(p) = pack_fp16x2(x, y);
    return !exist | (is_finite(x) & is_finite(y));
  }
  // From the midpoint between 65504 and 65536 on, a sum rounds to infinity.
  __device__ static __forceinline__ bool is_finite(float x) { return fabsf(x) < 65520.0f; }
  __device__ static __forceinline__ void pack(const float* sums, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = pack_fp16x2(sums[2 * i], sums[2 * i + 1]);
  }
  __device__ static __forceinline__ u32 see(u32 pair, u32 seen) { return see_fp16x2(pair, seen); }
  // Stores 8 x 8 elements of each of four column groups (stmatrix) to shared memory.
  __device__ static __forceinline__ void put_matrices(u32 address, const float* sums) {
    store_matrix_fp16_x4(address, sums);
  }
};

}  // namespace gemm::output
