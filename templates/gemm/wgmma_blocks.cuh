// Main loops of WGMMA from zero over a K-block or parts of it, then promotion in fp32. Scale is the
// kernel's policy.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#endif

namespace wgmma {
OCTILE_INSTANTIATE_MMA(OCTILE_WGMMA_N, OCTILE_WGMMA_STEPS, OCTILE_WGMMA_TYPES)
#ifdef OCTILE_WGMMA_TAIL_N
OCTILE_INSTANTIATE_MMA(OCTILE_WGMMA_TAIL_N, OCTILE_WGMMA_STEPS, OCTILE_WGMMA_TYPES)
#endif
}  // namespace wgmma

namespace gemm {

// A WGMMA group multiplies one strip of 64 rows over kPromote of K, or over the K-block if that is
// less. A consumer issues kBlockGroups of them for a K-block, kParts for each strip.
enum : int { kBlockGroups = kStrips * kParts };

// Issues WGMMA group `group` of the K-block in `stage` and commits it.
template <int kSums>
__device__ __forceinline__ void issue(const ConsumerThread& self, int stage, int group,
                                      float (&partial)[kSums]) {
  const u32 a =
      self.operands.a + stage * (cfg::kAStageBytes >> 4) + group / kParts * (64 * 128 >> 4);
  const u32 b = self.operands.b + stage * (cfg::kBStageBytes >> 4);
  const int k = group % kParts * cfg::kPromote >> 4;
  wgmma::Mma<2 * kSums>::issue(partial, a + k, b + k);
}

// Sums kUnroll consecutive K-blocks from `block` on into acc with kInFlight WGMMA groups in flight,
// each with partial sums of its own. Each promotion is followed by the issue of one more group, so
// the tensor core works while the CUDA cores promote.
template <typename Scale, int kSums>
__device__ __forceinline__ void multiply_in_flight(const ConsumerThread& self, Ring& ring,
                                                   int block, float (&acc)[kStrips][kSums]) {
  constexpr int kGroups = cfg::kUnroll * kBlockGroups;
  constexpr int kInFlight = cfg::kInFlight;
  static_assert(kInFlight <= kGroups, "WGMMA groups to have in flight");
  int stage[cfg::kUnroll];
  float partial[kInFlight][kSums];
  typename Scale::Factors factors[kInFlight];
#pragma unroll
  for (int step = 0; step < kGroups + kInFlight; ++step) {
    const int i = step % kInFlight;
    const int done = step - kInFlight;
    if (done >= 0) {
      wgmma::wait_for<kInFlight - 1>(min(kInFlight, kGroups - done) - 1);
      wgmma::pin(partial[i]);
      const int at = stage[done / kBlockGroups];
      const bool last = (done + 1) % kBlockGroups == 0;
      const typename Scale::BlockScales scales(self, at, block + done / kBlockGroups);
      if (last && !Scale::kPromotesFromStage) {
        release_stage(self, at, has_come(factors[i].last_read()));
      }
      const float last_read =
          Scale::promote(acc[done / kParts % kStrips], partial[i], factors[i], scales);
      if (last && Scale::kPromotesFromStage) release_stage(self, at, has_come(last_read));
    }
    if (step < kGroups) {
      const int group = step % kBlockGroups;
      int& at = stage[step / kBlockGroups];
      if (group == 0) {
        at = ring.stage;
        mbarrier::wait(self.smem.full(at), ring.phase);
        ring.advance();
      }
      // The scales are read before the stage can be handed back.
      const typename Scale::StageScales read(self, at, group / kParts, block + step / kBlockGroups);
      issue(self, at, group, partial[i]);
      factors[i] = read.factors();
    }
  }
}

// Sums the `k_blocks` K-blocks before `end`, at least one, into acc, one WGMMA group at a time:
// while this warpgroup promotes, others keep the tensor core busy. The next stage's barrier is
// tested before the last promotion of a stage, so that the answer is there once the next group
// could start. A stage that is promoted from is handed back once the next K-block's first group is
// issued: to wait for its last scale would delay that group.
template <typename Scale, int kSums>
__device__ __forceinline__ void multiply_serially(const ConsumerThread& self, Ring& ring,
                                                  int k_blocks, int end,
                                                  float (&acc)[kStrips][kSums]) {
  float partial[kSums];
  u32 ready = 0;
  int previous = -1;
#pragma unroll(cfg::kInFlight > 1 ? 1 : cfg::kUnroll)
  do {
    const int stage = ring.stage;
    mbarrier::wait_unless(ready, self.smem.full(stage), ring.phase);
    ring.advance();
    const int block = end - k_blocks;
    const typename Scale::BlockScales scales(self, stage, block);
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
      const typename Scale::StageScales read(self, stage, group / kParts, block);
      issue(self, stage, group, partial);
      if (group == 0 && Scale::kPromotesFromStage) release_stage(self, previous, previous >= 0);
      const typename Scale::Factors factors = read.factors();
      wgmma::wait<0>();
      wgmma::pin(partial);
      const bool last = group == kBlockGroups - 1;
      if (last && !Scale::kPromotesFromStage) {
        release_stage(self, stage, has_come(factors.last_read()));
      }
      if (last) ready = mbarrier::test(self.smem.full(ring.stage), ring.phase);
      Scale::promote(acc[group / kParts], partial, factors, scales);
    }
    previous = stage;
  } while (--k_blocks > 0);
  if (Scale::kPromotesFromStage) release_stage(self, previous, true);
}

// The same for a policy that reads a K-block's scales while the one before is promoted. The first
// K-block's are read at once.
template <typename Scale, int kSums>
__device__ __forceinline__ void multiply_reading_ahead(const ConsumerThread& self, Ring& ring,
                                                       int k_blocks, int end,
                                                       float (&acc)[kStrips][kSums]) {
  float partial[kSums];
  mbarrier::wait(self.smem.full(ring.stage), ring.phase);
  typename Scale::BlockScales scales(self, ring.stage, end - k_blocks);
  int previous = -1;
#pragma unroll 1
  do {
    const int stage = ring.stage;
    ring.advance();
    const int block = end - k_blocks;
#pragma unroll
    for (int group = 0; group < kBlockGroups; ++group) {
      const typename Scale::StageScales read(self, stage, group / kParts, block);
      issue(self, stage, group, partial);
      if (group == 0) release_stage(self, previous, previous >= 0);
      const typename Scale::Factors factors = read.factors();
      const bool last = group == kBlockGroups - 1;
      // Behind the tile's last K-block the same scales are read again and not used.
      if (last && k_blocks > 1) mbarrier::wait(self.smem.full(ring.stage), ring.phase);
      wgmma::wait<0>();
      wgmma::pin(partial);
      if (last) {
        Scale::promote_ahead(acc[group / kParts], partial, factors, scales, self,
                             k_blocks > 1 ? ring.stage : stage, block + 1);
      } else {
        Scale::promote(acc[group / kParts], partial, factors, scales);
      }
    }
    previous = stage;
  } while (--k_blocks > 0);
  release_stage(self, previous, true);
}

}  // namespace gemm
