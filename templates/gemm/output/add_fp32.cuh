// Element of an output policy: D = D + sum in fp32, rounded to nearest even.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/output/fp32.cuh"
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

struct AddFp32 : Fp32 {
  using Old = Floats2;
  enum : int { kAdds = 1 };

  __device__ static __forceinline__ Old load_if(bool exist, const float* p) {
    return exist ? load_global_8(p) : Old{};
  }
  __device__ static __forceinline__ void add(const Old& old, float& x, float& y) {
    x = __fadd_rn(old.value[0], x);
    y = __fadd_rn(old.value[1], y);
  }
};

}  // namespace gemm::output
