// The thread that issues the products of all consumers (tensor_memory.cuh has the picture). It
// walks the tiles as every role does, ahead of the consumers by as many items as there are slots:
// while they store a tile, the tensor core is at the next.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/operands_tcgen05.cuh"
#endif

namespace gemm {

enum : int {
  kSteps = 128 / 32,  // instructions along a K-block
  kPartSteps = kSteps / kParts,
};
static_assert(cfg::kUnroll == 1 && !kHasTail && kWarpsAcross == 1,
              "a pass is one K-block, and all tiles are whole");
static_assert(kParts == 1 || kIntervalBlocks == 1, "parts are promoted each");

namespace sums {

// Issues the products of a part of the K-block in `stage` for one product's rows. `goes_on`: onto
// the sums that are there.
__device__ __forceinline__ void multiply_part(const SharedMemory& smem, u32 d, int stage,
                                              int product, int part, bool goes_on) {
  const u32 k = static_cast<u32>(part * kPartSteps * 2);
  const u32 a = descriptor(smem.a(stage) + static_cast<u32>(product * kRowsPerConsumer * 128)) + k;
  const u32 b = descriptor(smem.b(stage)) + k;
#pragma unroll
  for (int step = 0; step < kPartSteps; ++step) {
    tcgen05::multiply(d, a + static_cast<u32>(2 * step), b + static_cast<u32>(2 * step),
                      kDescriptorHigh,
                      instruction_word<OCTILE_MMA_TYPES>(kRowsPerConsumer, cfg::kBlockN),
                      step > 0 || goes_on ? 1 : 0);
  }
}

// Hands a stage back once the products that are issued have read it, at every CTA that shares it.
__device__ __forceinline__ void commit_stage(const SharedMemory& smem, int stage) {
  if constexpr (kShareSize > 1) {
    tcgen05::commit_multicast(smem.empty(stage), kWholeCluster);
  } else {
    tcgen05::commit(smem.empty(stage));
  }
}

// One thread: the products of all tiles.
template <typename Walk>
__device__ __forceinline__ void issue_all(const SharedMemory& smem, const Extents& e, int rank) {
  const u32 first = address(smem);
  KRange range = Walk::k_range(e, rank);
  Ring ring;
  SlotPosition slot;
#pragma unroll 1
  for (auto position = Walk::first(e, smem); position.valid(); position.advance()) {
    if constexpr (Walk::kOwnRanges) range = Walk::k_range_of(position);
    int of_item = 0;  // K-blocks that the item has had
#pragma unroll 1
    for (int block = range.first; block < range.last; ++block) {
      const bool begins = kIntervalBlocks == 1 || of_item == 0;
      ++of_item;
      const bool ends =
          kIntervalBlocks == 1 || of_item == kIntervalBlocks || block == range.last - 1;
      mbarrier::wait(smem.full(ring.stage), ring.phase);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          if (begins) mbarrier::wait(taken(smem, product, slot.stage), slot.phase ^ 1);
          tcgen05::fence_after();
          multiply_part(smem, first + column(product, slot.stage), ring.stage, product, part,
                        !begins);
          if (ends) tcgen05::commit(ready(smem, product, slot.stage));
        }
        if (ends) slot.advance();
      }
      if constexpr (kIntervalBlocks != 1) commit_stage(smem, ring.stage);
      if (ends) of_item = 0;
      ring.advance();
    }
  }
  // Nobody else waits for the last commits of stages, which must come before the CTA ends.
  if constexpr (kIntervalBlocks != 1) {
#pragma unroll 1
    for (int i = 0; i < cfg::kStages; ++i) {
      mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
      ring.advance();
    }
  }
}

// A warp, of which one thread issues.
template <typename Walk>
__device__ __forceinline__ void issue(const SharedMemory& smem, const Extents& e, int rank) {
  if (elect_one()) issue_all<Walk>(smem, e, rank);
  __syncwarp();
}

}  // namespace sums

}  // namespace gemm
