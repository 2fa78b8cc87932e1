// Elements of an output policy: D += sum in fp32. Each element has one writer, so the order of the
// additions is that of the calls. Both elements round to nearest even and flush subnormal terms and
// sums to zero, which is what the reduction in L2 does (PTX ISA, red: .f32 on global memory).
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

// The addition is done in L2: no load holds up the consumer.
struct AddFp32 {
  using Stored = float;
  enum : int { kAdds = 1 };

  __device__ static __forceinline__ bool put_if(bool exist, float* p, float x, float y) {
    reduce_add_global_8_if(exist, p, x, y);
    return true;
  }
};

// The consumer adds, so that it can tell whether the result is finite: for problems with a sentry.
struct AddFp32Seen {
  using Stored = float;
  enum : int { kAdds = 1 };

  __device__ static __forceinline__ bool put_if(bool exist, float* p, float x, float y) {
    if (!exist) return true;
    const Floats2 old = load_global_8(p);
    const float left = add_flushing(old.value[0], x);
    const float right = add_flushing(old.value[1], y);
    store_global_8_if(true, p, left, right);
    const float infinity = __uint_as_float(0x7f800000u);
    return (fabsf(left) < infinity) & (fabsf(right) < infinity);
  }
};

}  // namespace gemm::output
