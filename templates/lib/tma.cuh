// TMA, the bulk copy engine. PTX ISA 9.0, "Data Movement and Conversion Instructions: Asynchronous
// copy". One thread issues each copy. Loads complete on an mbarrier (complete_tx::bytes), stores in
// bulk groups. Loads to the own CTA are in tma_loads.cuh or tma_loads_cta.cuh.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace tma {

// prefetch.tensormap [addr];  PTX 8.0, sm_90. Prefetches the descriptor into its cache.
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// cp.async.bulk.prefetch.tensor.2d.L2.global.tile [map, {x, y}];  PTX 8.0, sm_90. Prefetches a box
// of the map into L2, which all SMs share. A later load sees what was written there in between.
__device__ __forceinline__ void prefetch_2d(const TensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x),
               "r"(y)
               : "memory");
}

// cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
// .multicast::cluster [dst], [map, {x, y}], [mbarrier], mask;  PTX 8.0, sm_90. Loads to the same
// offset, and completes on the barrier at the same offset, in every CTA whose bit is set in mask.
__device__ __forceinline__ void load_2d_multicast(u32 dst, const TensorMap* map, int x, int y,
                                                  u32 barrier, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

// cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [dst],
// [src], bytes, [mbarrier], mask;  PTX 8.0, sm_90.
__device__ __forceinline__ void load_bulk_multicast(u32 dst, const void* src, u32 bytes,
                                                    u32 barrier, u16 mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
      "l"(src), "r"(bytes), "r"(barrier), "h"(mask)
      : "memory");
}

// cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {x, y}], [src];  PTX 8.0, sm_90.
// Writes only elements inside the tensor. Between ordinary writes to src and this store,
// fence_async_shared and a barrier are needed.
__device__ __forceinline__ void store_2d(const TensorMap* map, int x, int y, u32 src) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(src)
      : "memory");
}

// cp.async.bulk.commit_group;  PTX 8.0, sm_90. Closes the group of this thread's stores so far.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// cp.async.bulk.wait_group.read N;  PTX 8.0, sm_90. Waits until at most N of this thread's groups
// still read shared memory. The sources of the other groups may then be overwritten.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// fence.proxy.async.shared::cta;  PTX 8.0, sm_90. Every thread that wrote shared memory that TMA or
// a tensor core reads next calls it, before the barrier.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace tma
