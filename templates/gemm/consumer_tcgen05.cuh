// A consumer's main loops by tcgen05. tensor_memory.cuh has the picture, consumer.cuh the contract.
//
// Warp 0 of a consumer issues. It is ahead of the promotion by kSlots items: once all four warps
// have read a slot, it issues the next item into it. So that no warp is two items behind, the warps
// meet at each item. A stage is handed back by those who waited for its products, and needs no
// commit of its own.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/operands_tcgen05.cuh"
#endif

namespace gemm {

enum : int {
  kSteps = 128 / 32,  // instructions along a K-block
  kItemSteps = kSteps / kParts,
  kChunk = 32,  // columns that a thread reads at once
};
static_assert(cfg::kUnroll == 1 && !kHasTail && kWarpsAcross == 1,
              "a pass is one K-block, and all tiles are whole");
static_assert(kParts == 1 || kIntervalBlocks == 1, "parts are promoted each");

// The next item to issue: a part of the K-block in `ring`'s stage.
struct NextItem {
  Ring ring;
  int slot;
  int left;  // items
  int part = 0;
  int of_interval = 0;  // K-blocks that the interval has had
  int place = 0;        // of long sums

  __device__ __forceinline__ NextItem(const ConsumerRing& at, int items)
      : ring(at), slot(at.slot), left(items) {}

  // Warp 0, converged. Waits for the item's stage.
  __device__ __forceinline__ void issue(const ConsumerThread& self) {
    if (left == 0) return;
    --left;
    mbarrier::wait(self.smem.full(ring.stage), ring.phase);
    tcgen05::fence_after();
    if (elect_one()) {
      multiply(self);
      tcgen05::commit(sums::ready(self.smem, self.index, slot));
    }
    __syncwarp();
    advance();
  }

 private:
  __device__ __forceinline__ void multiply(const ConsumerThread& self) const {
    const u32 k = static_cast<u32>(part * kItemSteps * 2);
    const u32 a = self.operands.a + static_cast<u32>(ring.stage * (cfg::kAStageBytes >> 4)) + k;
    const u32 b = self.operands.b + static_cast<u32>(ring.stage * (cfg::kBStageBytes >> 4)) + k;
    const u32 d = self.operands.sums +
                  static_cast<u32>((kIntervalBlocks == 1 ? slot : place) * kPlaceColumns);
    const u32 goes_on = kIntervalBlocks != 1 && of_interval > 0 ? 1 : 0;
#pragma unroll
    for (int step = 0; step < kItemSteps; ++step) {
      tcgen05::multiply(d, a + static_cast<u32>(2 * step), b + static_cast<u32>(2 * step),
                        kDescriptorHigh,
                        instruction_word<OCTILE_MMA_TYPES>(kRowsPerConsumer, cfg::kBlockN),
                        step > 0 ? 1 : goes_on);
    }
  }

  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) slot = 0;
    if (++part < kParts) return;
    part = 0;
    ring.advance();
    if (kIntervalBlocks != 1 && ++of_interval == kIntervalBlocks) {
      of_interval = 0;
      place ^= 1;
    }
  }
};

// Waits for the products of the next slot.
__device__ __forceinline__ void wait_for_sums(const ConsumerThread& self,
                                              const ConsumerRing& ring) {
  mbarrier::wait(sums::ready(self.smem, self.index, ring.slot), ring.ready_phase);
  tcgen05::fence_after();
}

// The four warps have read what they need of the slot.
__device__ __forceinline__ void end_item(const ConsumerThread& self, ConsumerRing& ring) {
  tcgen05::fence_before();
  named_barrier(self.index + 1, 128);
  ring.advance_slot();
}

// Calls take(strip, partial, first) for the sums of a place, at most kChunk columns at a time:
// those of a strip from acc[first] on.
template <int kColumn, typename Take>
__device__ __forceinline__ void read_columns(u32 from, const Take& take) {
  if constexpr (kColumn < cfg::kBlockN) {
    constexpr int kLeft = cfg::kBlockN - kColumn, kColumns = kLeft < kChunk ? kLeft : kChunk;
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

__device__ __forceinline__ u32 place_of(const ConsumerThread& self, int place) {
  return self.operands.sums + static_cast<u32>(place * kPlaceColumns);
}

// Promotes each K-block, or each part of one.
template <typename Scale, int kSums>
__device__ __forceinline__ void promote_items(const ConsumerThread& self, ConsumerRing& ring,
                                              int k_blocks, int end, float (&acc)[kStrips][kSums]) {
  const bool issues = self.warp == 0;
  NextItem next(ring, k_blocks * kParts);
#pragma unroll 1
  for (int i = 0; issues && i < kSlots; ++i) next.issue(self);
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
      wait_for_sums(self, ring);
      read_columns<0>(place_of(self, ring.slot), [&](int strip, const auto& partial, int first) {
        last = Scale::promote(acc[strip], partial, factors[strip], scales, first);
      });
      end_item(self, ring);
      if (part == kParts - 1) release_stage(self, stage, has_come(last));
      if (issues) next.issue(self);
    }
  }
}

// Promotes kIntervalBlocks K-blocks at a time, or all of K.
template <int kSums>
__device__ __forceinline__ void promote_intervals(const ConsumerThread& self, ConsumerRing& ring,
                                                  int k_blocks, float (&acc)[kStrips][kSums]) {
  const bool issues = self.warp == 0;
  NextItem next(ring, k_blocks);
#pragma unroll 1
  for (int i = 0; issues && i < kSlots; ++i) next.issue(self);
  int of_interval = 0, place = 0;
#pragma unroll 1
  for (; k_blocks > 0; --k_blocks) {
    const int stage = next_stage(self, ring);
    wait_for_sums(self, ring);
    if (++of_interval == kIntervalBlocks || k_blocks == 1) {
      read_columns<0>(place_of(self, place), [&](int strip, const auto& partial, int first) {
        add_sums(acc[strip], partial, first);
      });
      of_interval = 0;
      place = kPlaces - 1 - place;
    }
    end_item(self, ring);
    release_stage(self, stage, true);
    if (issues) next.issue(self);
  }
}

template <typename Scale, bool kSome, int kSums>
__device__ __forceinline__ void sum_k_blocks(const ConsumerThread& self, ConsumerRing& ring,
                                             int k_blocks, int end, float (&acc)[kStrips][kSums]) {
  static_assert(!Scale::kOwnLoop, "the policy has a loop of WGMMA");
  if constexpr (kIntervalBlocks == 1) {
    promote_items<Scale>(self, ring, k_blocks, end, acc);
  } else {
    promote_intervals(self, ring, k_blocks, acc);
  }
}

}  // namespace gemm
