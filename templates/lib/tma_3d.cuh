// TMA with tensor maps of three dimensions; (x, y, z) begins with the innermost. The third selects
// a matrix of a batch, or lets rows end anywhere (gemm/output/clipped_boxes.cuh). The instructions
// are those of tma.cuh and tma_reduce.cuh.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/tma.cuh"
#endif

namespace tma {

// cp.async.bulk.prefetch.tensor.3d.L2.global.tile [map, {x, y, z}];  PTX 8.0, sm_90.
__device__ __forceinline__ void prefetch_3d(const TensorMap* map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}

// cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [map, {x, y, z}], [src];  PTX 8.0,
// sm_90.
__device__ __forceinline__ void store_3d(const TensorMap* map, int x, int y, int z, u32 src) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
          map),
      "r"(x), "r"(y), "r"(z), "r"(src)
      : "memory");
}

// cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [map, {x, y, z}], [src];
// PTX 8.0, sm_90.
__device__ __forceinline__ void add_3d(const TensorMap* map, int x, int y, int z, u32 src) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
      "[%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(src)
      : "memory");
}

}  // namespace tma
