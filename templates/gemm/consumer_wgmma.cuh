// A consumer's main loop by WGMMA: selects the loop for a kernel.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/long_sums.cuh"
#endif

namespace gemm {

// The contract is in consumer.cuh.
template <typename Scale, bool kSome, int kSums>
__device__ __forceinline__ void sum_k_blocks(const ConsumerThread& self, Ring& ring, int k_blocks,
                                             int end, float (&acc)[kStrips][kSums]) {
  if constexpr (cfg::kInFlight > 1) {
#pragma unroll 1
    for (; k_blocks >= cfg::kUnroll; k_blocks -= cfg::kUnroll) {
      multiply_in_flight<Scale>(self, ring, end - k_blocks, acc);
    }
  }
  // The loop above may leave no K-blocks.
  if ((kSome && cfg::kInFlight == 1) || k_blocks > 0) {
    if constexpr (kIntervalBlocks == 0) {
      multiply_all(self, ring, k_blocks, acc);
    } else if constexpr (kIntervalBlocks > 1) {
      multiply_intervals(self, ring, k_blocks, acc);
    } else if constexpr (Scale::kOwnLoop) {
      Scale::multiply(self, ring, k_blocks, end, acc);
    } else if constexpr (Scale::kReadsAhead) {
      multiply_reading_ahead<Scale>(self, ring, k_blocks, end, acc);
    } else {
      multiply_serially<Scale>(self, ring, k_blocks, end, acc);
    }
  }
}

}  // namespace gemm
