// TMA's reductions to global memory, beside the copies of tma.cuh.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/tma.cuh"
#endif

namespace tma {

// cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [map, {x, y}], [src];
// PTX 8.0, sm_90. Adds a box of fp32 to the elements inside the tensor, each rounded to nearest
// even, in L2. It reads src as store_2d does.
__device__ __forceinline__ void add_2d(const TensorMap* map, int x, int y, u32 src) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], "
      "[%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(src)
      : "memory");
}

}  // namespace tma
