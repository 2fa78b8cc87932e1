// A consumer warpgroup's main loops if the tensor core sums more than one K-block before a
// promotion, or all of K. Scales of blocks would not allow that, so no loop here reads scales. A
// WGMMA group stays in flight during the wait for the next stage, and a stage is released when the
// groups that read it have completed.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/wgmma_blocks.cuh"
#endif

#ifdef OCTILE_WGMMA_ONTO
namespace wgmma {
OCTILE_INSTANTIATE_MMA_ONTO(OCTILE_WGMMA_N, OCTILE_WGMMA_TYPES)
}  // namespace wgmma
#endif

namespace gemm {

static_assert(kIntervalBlocks == 1 || cfg::kInFlight == 1,
              "long sums keep a WGMMA group in flight by themselves");

// Issues the WGMMA group that adds a strip's products of the K-block in `stage` to `sums`.
template <int kSums>
__device__ __forceinline__ void issue_onto(const ConsumerThread& self, int stage, int strip,
                                           float (&sums)[kSums]) {
  const u32 a = self.operands.a + stage * (cfg::kAStageBytes >> 4) + strip * (64 * 128 >> 4);
  const u32 b = self.operands.b + stage * (cfg::kBStageBytes >> 4);
  wgmma::MmaOnto<2 * kSums>::issue(sums, a, b);
}

// Adds the next `k_blocks` K-blocks to `sums` and hands `previous` back, unless it is -1, and all
// their stages but the last. Returns that one, whose groups are in flight.
template <int kSums>
__device__ __forceinline__ int multiply_onto(const ConsumerThread& self, Ring& ring, int k_blocks,
                                             int previous, float (&sums)[kStrips][kSums]) {
#pragma unroll 1
  for (; k_blocks > 0; --k_blocks) {
    const int stage = next_stage(self, ring);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) issue_onto(self, stage, strip, sums[strip]);
    wgmma::wait<kStrips>();
    release_stage(self, previous, previous >= 0);
    previous = stage;
  }
  return previous;
}

// Sums the next `k_blocks` K-blocks, at least one, onto acc by the tensor core alone.
template <int kSums>
__device__ __forceinline__ void multiply_all(const ConsumerThread& self, Ring& ring, int k_blocks,
                                             float (&acc)[kStrips][kSums]) {
  const int last = multiply_onto(self, ring, k_blocks, -1, acc);
  wgmma::wait<0>();
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) wgmma::pin(acc[strip]);
  release_stage(self, last, true);
}

// Sums the next `k_blocks` K-blocks, at least one, into acc, kIntervalBlocks at a time from zero.
// A strip is promoted while the tensor core works on the strips behind it.
template <int kSums>
__device__ __forceinline__ void multiply_intervals(const ConsumerThread& self, Ring& ring,
                                                   int k_blocks, float (&acc)[kStrips][kSums]) {
  float partial[kStrips][kSums];
#pragma unroll 1
  do {
    const int first = next_stage(self, ring);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) issue(self, first, strip, partial[strip]);
    const int others = min(k_blocks, static_cast<int>(kIntervalBlocks)) - 1;
    const int last = multiply_onto(self, ring, others, first, partial);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      wgmma::wait_for<kStrips - 1>(kStrips - 1 - strip);
      wgmma::pin(partial[strip]);
      if (strip == kStrips - 1) release_stage(self, last, true);
      add_sums(acc[strip], partial[strip]);
    }
    k_blocks -= kIntervalBlocks;
  } while (k_blocks > 0);
}

}  // namespace gemm
