// The ring of shared-memory stages between the producer warp and the consumer warpgroups.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace gemm {

// Which stage is next and the parity its barriers complete with. A consumer waits for `full` with
// `phase`; the producer waits for `empty` with `phase ^ 1`, which a fresh barrier satisfies at
// once.
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
