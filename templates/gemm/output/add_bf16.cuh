// Element of an output policy: D = D + sum in bf16. The addition is in fp32, and one rounding to
// nearest even follows.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

struct AddBf16 {
  using Stored = u16;
  enum : int { kAdds = 1 };

  __device__ static __forceinline__ bool put_if(bool exist, u16* p, float x, float y) {
    if (!exist) return true;
    const u32 old = *reinterpret_cast<const u32*>(p);
    const float left = __fadd_rn(__uint_as_float(old << 16), x);
    const float right = __fadd_rn(__uint_as_float(old & 0xffff0000u), y);
    *reinterpret_cast<u32*>(p) = pack_bf16x2(left, right);
    const float limit = __uint_as_float(0x7f7f8000u);  // rounds to infinity, as all beyond
    return (fabsf(left) < limit) & (fabsf(right) < limit);
  }
};

}  // namespace gemm::output
