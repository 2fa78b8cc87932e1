// The sums of tcgen05 are in tensor memory, which a CTA allocates when it begins and releases when
// it ends.
//
// A product has all columns of the tile and 64 or 128 of its rows: those of a consumer, or of two
// consumers side by side, of which each promotes half of the columns. Its sums lie in slots, which
// take turns. A slot holds an item: a part of a K-block, a K-block, several, or all of a tile's K,
// as kPromote says. One thread, the issuer, issues the products of an item into a slot and commits
// them to the slot's `ready`. The consumers' warps wait for it and read the sums; each then arrives
// at the slot's `taken`, for which the issuer waits before it fills the slot again:
//
//   issuer      | item 0 | item 1 | item 2 | item 3 |  item 3 may be the next tile's first
//   slot        |   0    |   1    |   0    |   1    |
//   consumers            | read 0 | read 1 | read 2, store D  | read 3
//
// If the instruction multiplies scales of blocks, these lie behind the sums
// (scale/inside_tcgen05.cuh). Each stage has columns of its own for them, because a copy to tensor
// memory does not wait for the products that were issued before it: four for the 128 rows of a
// product, and four for each 128 columns of the tile.
//
// Each warp finds a quarter of a product's rows in the first of its 32 lanes, so that it has
// neighbouring rows: a strip is 16 rows of each warp.
//
// Shared memory, behind the barriers of the ring: ready[product][slot] and taken[product][slot], 8
// bytes each, and the address of the CTA's tensor memory.
//
// Barriers    arrivals                              completes when
//   ready[]   the commit of an item's products      its sums are in the slot
//   taken[]   4 warps x consumers of the product    all have read them
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#include "lib/f32x2.cuh"
#include "lib/tcgen05.cuh"
#define OCTILE_SCALES_IN_WORD 0
#endif

namespace gemm {

enum : int {
  kWarpRows = kRowsPerConsumer / 4,
  kStripStep = 16,
  kSlots = cfg::kInFlight,
  kProducts = cfg::kConsumerWarpgroups / kConsumersAcross,  // one below the other
  kSumColumns = kProducts * kSlots * cfg::kBlockN,
  // Scales of an operand's row in a word of a stage; 0: instructions multiply none.
  kScalesInWord = OCTILE_SCALES_IN_WORD,
  kScaleGroups = kScalesInWord > 0 ? kProducts + ceil_div(cfg::kBlockN, 128) : 0,  // of a stage
  kScaleGroupBytes = 512,  // of 128 rows or columns, a word for each
  kColumnsNeeded = kSumColumns + cfg::kStages * kScaleGroups * 4,
  kTensorColumns = kColumnsNeeded <= 32    ? 32
                   : kColumnsNeeded <= 64  ? 64
                   : kColumnsNeeded <= 128 ? 128
                   : kColumnsNeeded <= 256 ? 256
                                           : 512,
  kReadyOffset = cfg::kBarrierOffset + kBarriers * 8,
  kTakenOffset = kReadyOffset + kProducts * kSlots * 8,
  kAddressOffset = kTakenOffset + kProducts * kSlots * 8,
  kAllocatingWarp = 1,
};
static_assert(kColumnsNeeded <= 512, "an SM has 512 columns of tensor memory");
static_assert(kRowsPerConsumer == 64 || kRowsPerConsumer == 128, "a product has 64 or 128 rows");
static_assert(kScalesInWord == 0 || (kRowsPerConsumer == 128 && kIntervalBlocks == 0),
              "an instruction that multiplies scales has 128 rows, and sums all of K");
static_assert(kConsumerColumns % 16 == 0, "loads of 16 columns");
static_assert(cfg::kSmemBytes >= kAddressOffset + 4, "shared memory has the slots' barriers");

// The next slot, and the parity with which its barriers complete.
using SlotPosition = RingPosition<kSlots>;

// A consumer's place in the ring and in the slots of its product.
struct ConsumerRing : Ring {
  SlotPosition slot;
};

namespace sums {

enum : int {
  // A stage's arrivals at `empty` from each CTA that reads it: one of each consumer warp, which has
  // read scales there, or the commit of the products. Those of long sums are all that reads it.
  kReleases = kIntervalBlocks == 1 ? 4 * cfg::kConsumerWarpgroups : 1,
  kHasIssuer = true,
};

__device__ __forceinline__ u32 ready(const SharedMemory& smem, int product, int slot) {
  return smem.base + kReadyOffset + static_cast<u32>((product * kSlots + slot) * 8);
}
__device__ __forceinline__ u32 taken(const SharedMemory& smem, int product, int slot) {
  return smem.base + kTakenOffset + static_cast<u32>((product * kSlots + slot) * 8);
}

// The address of tensor memory, before any lane.
__device__ __forceinline__ u32 address(const SharedMemory& smem) {
  return static_cast<u32>(load_shared_i32(smem.base + kAddressOffset));
}
// The first column of a product's slot, behind that address.
__device__ __forceinline__ u32 column(int product, int slot) {
  return static_cast<u32>((product * kSlots + slot) * cfg::kBlockN);
}

// The first column of a stage's scales: those of A's rows of each product, and then those of the
// tile's columns.
__device__ __forceinline__ u32 scale_column(int stage, int group) {
  return static_cast<u32>(kSumColumns + (stage * kScaleGroups + group) * 4);
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
  for (int i = 0; i < kProducts * kSlots; ++i) {
    mbarrier::init(ready(smem, 0, i), 1);
    mbarrier::init(taken(smem, 0, i), 4 * kConsumersAcross);
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
