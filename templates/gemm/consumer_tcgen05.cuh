// A consumer's main loops by tcgen05: it promotes the sums of the products that the issuer issues.
// tensor_memory.cuh has the figure, consumer.cuh the contract. The warps that waited for a stage's
// products release it. With long sums, where a consumer reads nothing in a stage, the products'
// commit does.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/issuer_tcgen05.cuh"
#endif

namespace gemm {

enum : int { kChunk = 32 };  // columns that a thread reads at once

// Waits for the sums of the next slot.
__device__ __forceinline__ void wait_for_sums(const ConsumerThread& self,
                                              const SlotPosition& slot) {
  mbarrier::wait(sums::ready(self.smem, self.index / kConsumersAcross, slot.stage), slot.phase);
  tcgen05::fence_after();
}

// The warp has read what it needs of the slot. The lane that arrives fences for all, whom it has
// met.
__device__ __forceinline__ void hand_slot_back(const ConsumerThread& self, SlotPosition& slot) {
  tcgen05::fence_before();
  __syncwarp();
  if (self.lane == 0) {
    tcgen05::fence_after();
    tcgen05::fence_before();
    mbarrier::arrive(sums::taken(self.smem, self.index / kConsumersAcross, slot.stage));
  }
  slot.advance();
}

// Calls take(strip, partial, first) for the consumer's sums in a slot, at most kChunk columns at a
// time: those of a strip from acc[first] on.
template <int kColumn, typename Take>
__device__ __forceinline__ void read_columns(u32 from, const Take& take) {
  if constexpr (kColumn < kConsumerColumns) {
    constexpr int kLeft = kConsumerColumns - kColumn, kColumns = kLeft < kChunk ? kLeft : kChunk;
    float partial[kStrips][kColumns / 2];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      tcgen05::load(partial[strip], from + kColumn + (static_cast<u32>(strip * kStripStep) << 16));
    }
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      tcgen05::wait_loads(partial[strip]);
      take(strip, partial[strip], kColumn / 2);
    }
    read_columns<kColumn + kChunk>(from, take);
  }
}
template <typename Take>
__device__ __forceinline__ void read_slot(const ConsumerThread& self, const SlotPosition& slot,
                                          const Take& take) {
  read_columns<0>(self.operands.sums + sums::column(0, slot.stage), take);
}

// Promotes each K-block, or each part of one.
template <typename Scale, int kSums>
__device__ __forceinline__ void promote_blocks(const ConsumerThread& self, ConsumerRing& ring,
                                               int k_blocks, int end,
                                               float (&acc)[kStrips][kSums]) {
#pragma unroll 1
  for (; k_blocks > 0; --k_blocks) {
    const int block = end - k_blocks;
    const int stage = next_stage(self, ring);
    const typename Scale::BlockScales scales(self, stage, block);
    typename Scale::Factors factors[kStrips];
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      factors[strip] = typename Scale::StageScales(self, stage, strip, block).factors();
    }
    float last = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      wait_for_sums(self, ring.slot);
      read_slot(self, ring.slot, [&](int strip, const auto& partial, int first) {
        last = Scale::promote(acc[strip], partial, factors[strip], scales, first);
      });
      hand_slot_back(self, ring.slot);
    }
    release_stage(self, stage, has_come(last));
  }
}

// Promotes kIntervalBlocks K-blocks at a time, or all of K.
template <int kSums>
__device__ __forceinline__ void promote_intervals(const ConsumerThread& self, ConsumerRing& ring,
                                                  int k_blocks, float (&acc)[kStrips][kSums]) {
  const int each = kIntervalBlocks == 0 ? k_blocks : static_cast<int>(kIntervalBlocks);
#pragma unroll 1
  for (; k_blocks > 0; k_blocks -= each) {
    wait_for_sums(self, ring.slot);
    read_slot(self, ring.slot, [&](int strip, const auto& partial, int first) {
      add_sums(acc[strip], partial, first);
    });
    hand_slot_back(self, ring.slot);
  }
}

template <typename Scale, bool kSome, int kSums>
__device__ __forceinline__ void sum_k_blocks(const ConsumerThread& self, ConsumerRing& ring,
                                             int k_blocks, int end, float (&acc)[kStrips][kSums]) {
  static_assert(!Scale::kOwnLoop, "the policy has a loop of WGMMA");
  if constexpr (kIntervalBlocks == 1) {
    promote_blocks<Scale>(self, ring, k_blocks, end, acc);
  } else {
    promote_intervals(self, ring, k_blocks, acc);
  }
}

}  // namespace gemm
