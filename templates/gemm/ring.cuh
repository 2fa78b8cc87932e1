// A position in the ring of shared-memory stages between the producer and the consumer warpgroups.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace gemm {

// The next stage, and the parity with which its barriers complete. A consumer waits for `full` with
// `phase`. A producer waits for `empty` with `phase ^ 1`, which holds at once for a fresh barrier.
template <int kStages>
struct RingPosition {
  int stage = 0;
  u32 phase = 0;

  __device__ __forceinline__ void advance() {
    ++stage;
    if (stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace gemm
