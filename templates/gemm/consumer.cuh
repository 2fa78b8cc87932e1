// A consumer thread, and common parts of the main loops of all matrix units. operands_*.cuh has the
// addresses of the unit's operands; consumer_*.cuh has its main loops:
//   sum_k_blocks<Scale, kSome>(self, ring, k_blocks, end, acc)  adds the k_blocks K-blocks before
//                      `end`, at least one if kSome, to acc. For each it waits for the stage's
//                      `full`, advances `ring` and hands the stage back (release_stage), unless
//                      the unit does that itself (sums::kReleases).
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/operands_wgmma.cuh"
#endif

namespace gemm {

// Promotions of a K-block: the tensor core sums kPromote of K, or the K-block if that is less.
enum : int { kParts = cfg::kPromote == 32 ? 4 : cfg::kPromote == 64 ? 2 : 1 };

// The part of a consumer thread that stays the same over all its tiles.
struct ConsumerThread {
  SharedMemory smem;
  int index;  // index of its consumer warpgroup
  int warp;   // index in the warpgroup, among the warps with rows of their own
  int lane;
  Operands operands;
  int scale_row;  // the upper of the thread's two rows of A in a strip

  // The warp's first column of the tile.
  __device__ __forceinline__ static int first_column() {
    const int of_consumer = static_cast<int>(threadIdx.x / 32 % kWarpsAcross) * kWarpColumns;
    if constexpr (kConsumersAcross == 1) return of_consumer;
    return static_cast<int>(threadIdx.x / 128 % kConsumersAcross) * kConsumerColumns + of_consumer;
  }

  __device__ __forceinline__ explicit ConsumerThread(const SharedMemory& shared)
      : smem(shared),
        index(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0)),
        warp(static_cast<int>(threadIdx.x / 32 % 4 / kWarpsAcross)),
        lane(static_cast<int>(threadIdx.x % 32)),
        operands(smem, index, warp, lane, first_column()),
        // Rows beyond a short tile are not stored, so any scale serves them.
        scale_row(min(first_row() + warp * kWarpRows + lane / 4, cfg::kBlockM - 9)) {}

  // The consumer's first row of the tile.
  __device__ __forceinline__ int first_row() const {
    return index / kConsumersAcross * kRowsPerConsumer;
  }

  // D leaves a consumer in boxes of 64 rows, or of a short tile's. These are the box that has the
  // warp's rows of a strip, and the first of them in it. (A copy of a loop's `strip` would change
  // WGMMA kernels' machine code.)
  __device__ __forceinline__ int box(const int& strip) const {
    return kStripStep == 64 ? strip : warp * kWarpRows / 64;
  }
  __device__ __forceinline__ int box_row(int strip) const {
    return kStripStep == 64 ? warp * kWarpRows : warp * kWarpRows % 64 + strip * kStripStep;
  }
};

// Hands a stage back if `ready`: one arrival for each warp, at every CTA that shares the stage's
// operands. By then the warp must have what it read of the stage, and ptxas lets an arrival
// overtake reads whose values have not come: the next copy would overwrite what they are about to
// read (docs/experiments/gemm.md, v41). So `ready` is has_come of the last scale read (a warp's
// reads come in the order of the source), or a loop's branch lies between the last use of a scale
// and this call.
__device__ __forceinline__ void release_stage(const ConsumerThread& self, int stage, bool ready) {
  __syncwarp();
  if constexpr (kShareSize > 1) {
    if (ready & (self.lane < kShareSize)) {
      mbarrier::arrive_cluster(self.smem.empty(stage), self.lane);
    }
  } else {
    if (ready & (self.lane == 0)) mbarrier::arrive(self.smem.empty(stage));
  }
}

// Waits for the next stage and returns it.
__device__ __forceinline__ int next_stage(const ConsumerThread& self, Ring& ring) {
  const int stage = ring.stage;
  mbarrier::wait(self.smem.full(stage), ring.phase);
  ring.advance();
  return stage;
}

// Adds partial sums to the fp32 sums from acc[first] on.
template <int kSums, int kPartial>
__device__ __forceinline__ void add_sums(float (&acc)[kSums], const float (&partial)[kPartial],
                                         int first = 0) {
#pragma unroll
  for (int i = 0; i < kPartial; i += 2) {
    two::add(acc[first + i], acc[first + i + 1], partial[i], partial[i + 1]);
  }
}

}  // namespace gemm
