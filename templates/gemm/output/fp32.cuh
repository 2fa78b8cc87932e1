// Element of an output policy: D in fp32, the sums as they are.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

struct Fp32 {
  using Stored = float;
  enum : int { kAdds = 0 };

  __device__ static __forceinline__ bool put_if(bool exist, float* p, float x, float y) {
    store_global_8_if(exist, p, x, y);
    return !exist | (is_finite(x) & is_finite(y));
  }
  __device__ static __forceinline__ bool is_finite(float x) {
    return fabsf(x) < __uint_as_float(0x7f800000u);
  }
};

}  // namespace gemm::output
