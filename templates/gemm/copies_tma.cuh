// Copies of operands into a stage of the ring: one thread issues TMA copies of whole boxes.
//
// Contract of the copies. A stage's copies complete on its barrier `full`:
//   kArrivals            arrivals at `full` that belong to the copies of a stage
//   copies_here()        whether a thread of the copy warp, all of which call it together, issues
//                        copies. Those that do call the others
//   announce(full, bytes)  before a stage's copies, which have `bytes` in all
//   close(full)          behind them
// and namespace tma has load_2d, load_3d and load_bulk, which issue them.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/mbarrier.cuh"
#include "lib/tma.cuh"
#include "lib/warpgroup.cuh"
#endif

namespace gemm::copies {

enum : int { kArrivals = 1 };

__device__ __forceinline__ bool copies_here() { return elect_one(); }

// From here on the stage waits only for bytes, and for the scale warp.
__device__ __forceinline__ void announce(u32 full, u32 bytes) {
  mbarrier::arrive_expect_tx(full, bytes);
}

__device__ __forceinline__ void close(u32) {}

}  // namespace gemm::copies
