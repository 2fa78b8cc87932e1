// TMA loads to the own CTA, in a cluster or not. lib/tma.cuh has the other copies.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace tma {

// cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
// [dst], [map, {x, y}], [mbarrier];  PTX 8.0, sm_90. Loads the map's box at (x inner, y outer). TMA
// zero-fills elements outside the tensor and counts them in the bytes.
__device__ __forceinline__ void load_2d(u32 dst, const TensorMap* map, int x, int y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
// [dst], [map, {x, y, z}], [mbarrier];  PTX 8.0, sm_90.
__device__ __forceinline__ void load_3d(u32 dst, const TensorMap* map, int x, int y, int z,
                                        u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

// cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [dst], [src], bytes,
// [mbarrier]; PTX 8.0, sm_90. dst, src and bytes are multiples of 16, and bytes > 0.
__device__ __forceinline__ void load_bulk(u32 dst, const void* src, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(dst),
      "l"(src), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace tma
