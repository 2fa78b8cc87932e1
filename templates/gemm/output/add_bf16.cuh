// Element of an output policy: D = D + sum in bf16. The addition is in fp32, and one rounding to
// nearest even follows.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/output/bf16.cuh"
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

struct AddBf16 : Bf16 {
  using Old = u32;  // two elements
  enum : int { kAdds = 1 };

  __device__ static __forceinline__ Old load_if(bool exist, const u16* p) {
    return exist ? *reinterpret_cast<const u32*>(p) : 0;
  }
  __device__ static __forceinline__ void add(Old old, float& x, float& y) {
    x = __fadd_rn(__uint_as_float(old << 16), x);
    y = __fadd_rn(__uint_as_float(old & 0xffff0000u), y);
  }
};

}  // namespace gemm::output
