// The sums of tcgen05 are in tensor memory, which a CTA allocates when it begins and releases when
// it ends.
//
// Each consumer has slots of it. One thread issues the products of an item, a K-block or a part of
// one, and commits them to the slot's mbarrier; the four warps of the consumer wait for it, read
// the sums and promote them, while the products of the next items are done. A slot is the tile's
// columns wide. A product has all rows of a consumer, 64 or 128. Each warp finds a quarter of them
// in the first of its 32 lanes, so that it has neighbouring rows: a strip is 16 rows of each warp.
//
// Shared memory, behind the barriers of the ring: ready[consumer][slot], 8 bytes each, and the
// address of the CTA's tensor memory.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#include "lib/tcgen05.cuh"
#endif

namespace gemm {

enum : int {
  kWarpRows = kRowsPerConsumer / 4,
  kStripStep = 16,
  // Long sums lie in one place for a whole interval. Two slots then only count K-blocks.
  kSlots = kIntervalBlocks == 1 ? cfg::kInFlight : 2,
  // Places of sums: one for each slot, for each of two intervals, or for all of K.
  kPlaces = kIntervalBlocks == 1   ? kSlots
            : kIntervalBlocks == 0 ? 1
                                   : 2,
  kPlaceColumns = cfg::kBlockN,
  kColumnsNeeded = cfg::kConsumerWarpgroups * kPlaces * kPlaceColumns,
  kTensorColumns = kColumnsNeeded <= 32    ? 32
                   : kColumnsNeeded <= 64  ? 64
                   : kColumnsNeeded <= 128 ? 128
                   : kColumnsNeeded <= 256 ? 256
                                           : 512,
  kReadyOffset = cfg::kBarrierOffset + kBarriers * 8,
  kAddressOffset = kReadyOffset + cfg::kConsumerWarpgroups * kSlots * 8,
  kAllocatingWarp = 1,
};
static_assert(kColumnsNeeded <= 512, "an SM has 512 columns of tensor memory");
static_assert(kRowsPerConsumer == 64 || kRowsPerConsumer == 128, "a product has 64 or 128 rows");
static_assert(kSlots <= cfg::kStages, "a slot's products wait for a stage that nobody hands back");
static_assert(cfg::kSmemBytes >= kAddressOffset + 4, "shared memory has the slots' barriers");

// A consumer's place in the ring and in its slots.
struct ConsumerRing : Ring {
  int slot = 0;
  u32 ready_phase = 0;  // parity with which the slot's barrier completes

  __device__ __forceinline__ void advance_slot() {
    if (++slot == kSlots) {
      slot = 0;
      ready_phase ^= 1;
    }
  }
};

namespace sums {

__device__ __forceinline__ u32 ready(const SharedMemory& smem, int consumer, int slot) {
  return smem.base + kReadyOffset + static_cast<u32>((consumer * kSlots + slot) * 8);
}

// The address of a consumer's first place, before any lane.
__device__ __forceinline__ u32 address(const SharedMemory& smem) {
  return static_cast<u32>(load_shared_i32(smem.base + kAddressOffset));
}

// Before the CTA's first synchronisation, which makes the address visible.
__device__ __forceinline__ void take_memory(const SharedMemory& smem) {
  if (threadIdx.x / 32 == kAllocatingWarp) {
    tcgen05::allocate(smem.base + kAddressOffset, kTensorColumns);
  }
  tcgen05::fence_before();
  // The cluster's synchronisation that follows then orders no memory (cluster_sync).
  if constexpr (kShareSize > 1) __syncthreads();
}

// One thread.
__device__ __forceinline__ void init_barriers(const SharedMemory& smem) {
#pragma unroll
  for (int i = 0; i < cfg::kConsumerWarpgroups * kSlots; ++i) {
    mbarrier::init(smem.base + kReadyOffset + static_cast<u32>(i * 8), 1);
  }
}

// All threads call this after the synchronisation that follows take_memory().
__device__ __forceinline__ void begin() { tcgen05::fence_after(); }

// All threads call this when none of them reads sums any more.
__device__ __forceinline__ void give_memory_back(const SharedMemory& smem) {
  tcgen05::fence_before();
  __syncthreads();
  tcgen05::fence_after();
  if (threadIdx.x / 32 == kAllocatingWarp) tcgen05::release(address(smem), kTensorColumns);
}

}  // namespace sums

}  // namespace gemm
