// The thread that issues the products of all consumers (tensor_memory.cuh has the figure). It walks
// the tiles like every role, ahead of the consumers by one item per slot: while they store a tile,
// the tensor core computes the next.
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

// Copies a stage's scales to their columns. Products of the stage's last K-block have read what was
// there once they handed the stage back, which this thread has to hear. Those that it issues behind
// the copies wait for them.
__device__ __forceinline__ void copy_scales(const SharedMemory& smem, u32 first, int stage,
                                            u32 phase) {
  mbarrier::wait(smem.empty(stage), phase ^ 1);
  tcgen05::fence_after();
#pragma unroll
  for (int group = 0; group < kScaleGroups; ++group) {
    const u32 from = group < kProducts
                         ? smem.scales_a(stage) + group * kScaleGroupBytes
                         : smem.scales_b(stage) + (group - kProducts) * kScaleGroupBytes;
    tcgen05::copy_to_quarters(first + scale_column(stage, group), scale_descriptor(from),
                              kScaleDescriptorHigh);
  }
}

// Issues the products of a part of the K-block in `stage` for one product's rows. `goes_on`: onto
// the sums that are there.
__device__ __forceinline__ void multiply_part(const SharedMemory& smem, u32 first, u32 d, int stage,
                                              int product, int part, bool goes_on) {
  const u32 k = static_cast<u32>(part * kPartSteps * 2);
  const u32 a = descriptor(smem.a(stage) + static_cast<u32>(product * kRowsPerConsumer * 128)) + k;
  const u32 b = descriptor(smem.b(stage)) + k;
#pragma unroll
  for (int step = 0; step < kPartSteps; ++step) {
    const u32 a_step = a + static_cast<u32>(2 * step), b_step = b + static_cast<u32>(2 * step);
    const u32 adds = step > 0 || goes_on ? 1 : 0;
    if constexpr (kScalesInWord > 0) {
      const int byte = kScalesInWord == 1 ? 0 : step;
      tcgen05::multiply_scaled(
          d, a_step, b_step, kDescriptorHigh,
          scaled_instruction_word<OCTILE_MMA_TYPES>(kRowsPerConsumer, cfg::kBlockN, byte),
          first + scale_column(stage, product), first + scale_column(stage, kProducts), adds);
    } else {
      tcgen05::multiply(d, a_step, b_step, kDescriptorHigh,
                        instruction_word<OCTILE_MMA_TYPES>(kRowsPerConsumer, cfg::kBlockN), adds);
    }
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
      if constexpr (kScalesInWord > 0) copy_scales(smem, first, ring.stage, ring.phase);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          if (begins) mbarrier::wait(taken(smem, product, slot.stage), slot.phase ^ 1);
          tcgen05::fence_after();
          multiply_part(smem, first, first + column(product, slot.stage), ring.stage, product, part,
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
