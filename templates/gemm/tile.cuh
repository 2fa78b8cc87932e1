// What the roles of the Hopper GEMM agree on: the shape of a tile, the map of shared memory and
// which tile and K-blocks are whose (hopper_1d2d.cu has the picture).
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/default_prologue.cuh"
#endif

namespace gemm {

constexpr int kWgmmaK = 32;  // of one FP8 instruction
// A tile of fewer than 64 rows loads and stores only those: the instruction still multiplies 64,
// of which the rest, whatever lies behind the tile in shared memory, is never stored.
constexpr int kRowsPerConsumer = cfg::kBlockM < 64 ? 64 : cfg::kBlockM / cfg::kConsumerWarpgroups;
constexpr int kStrips = kRowsPerConsumer / 64;
constexpr int kStripRows = cfg::kBlockM < 64 ? cfg::kBlockM : 64;
constexpr int kAccumulators = cfg::kBlockN / 2;
constexpr int kShareSize = cfg::kClusterM * cfg::kClusterN;
constexpr int kClusterSize = kShareSize * cfg::kSplits;
constexpr int kAStageBytes = cfg::kBlockM * cfg::kBlockK;
constexpr int kBStageBytes = cfg::kBlockN * cfg::kBlockK;
// Tiles of fewer columns at the end of a walk, which a stage of the ring holds too.
constexpr bool kHasTail = cfg::kTailN > 0;
constexpr int kNarrowAccumulators = (kHasTail ? cfg::kTailN : cfg::kBlockN) / 2;
constexpr int kScaleStageBytes = (cfg::kBlockM * 4 + 127) / 128 * 128;
constexpr int kStripBytes = kStripRows * cfg::kBlockN * 2;
constexpr int kConsumerThreads = 128 * cfg::kConsumerWarpgroups;
// Split K: every rank sums its share of the tile's column groups (8 columns) over all ranks.
constexpr int kGroups = cfg::kBlockN / 8;
constexpr int kShareGroups = ceil_div(kGroups, cfg::kSplits);
constexpr int kDBytes = cfg::kSplits > 1
                            ? cfg::kSplits* kShareGroups* kStrips* kConsumerThreads * 16
                        : cfg::kTmaStore ? cfg::kBlockM* cfg::kBlockN * 2
                                         : 0;
// Columns sure to share a 128-wide scale block, whatever the tile's first column, and how many
// blocks a tile can touch.
constexpr int kScaleSegment = gcd(cfg::kBlockN, 128);
constexpr int kScaleRows = ceil_div(cfg::kBlockN - kScaleSegment, 128) + 1;
// Scales of B in a stage: one where the tile lies in one block, else one a segment.
constexpr int kScalesB = kScaleRows == 1 ? 1 : cfg::kBlockN / kScaleSegment;
constexpr int kScaleBStageBytes = ceil_div(kScalesB, 4) * 16;
constexpr int kBOffset = cfg::kStages * kAStageBytes;
constexpr int kDOffset = kBOffset + cfg::kStages * kBStageBytes;
constexpr int kScaleOffset = kDOffset + kDBytes;
constexpr int kScaleBOffset = kScaleOffset + cfg::kStages * kScaleStageBytes;
constexpr int kBarrierOffset = kScaleBOffset + cfg::kStages * kScaleBStageBytes;
constexpr int kBarriers = 2 * cfg::kStages + 1 + (cfg::kSplits > 1 ? 2 : 0);
constexpr int kSmemBytes = kBarrierOffset + kBarriers * 8;

static_assert(cfg::kBlockK == 128, "one K-block is one scale block");
static_assert(kStrips * 64 * cfg::kConsumerWarpgroups == (cfg::kBlockM < 64 ? 64 : cfg::kBlockM),
              "strips of 64 rows");
static_assert(cfg::kSplits == 1 || (kShareSize == 1 && !cfg::kTmaStore),
              "a cluster splits or shares");
static_assert(128 % cfg::kPromote == 0 && cfg::kPromote % kWgmmaK == 0, "promotion interval");
static_assert(cfg::kClusterM == 1 || cfg::kClusterN == 1, "a cluster shares one operand");
static_assert(!kHasTail || (kClusterSize == 1 && 2 * cfg::kTailN == cfg::kBlockN &&
                              128 % cfg::kBlockN == 0),
              "a narrow tile is half of one that lies in one scale block");

// What is the same for every CTA of a launch.
struct Extents {
  int m, n, k;
  TileOrder order;
  __device__ __forceinline__ int k_blocks() const { return ceil_div(k, 128); }
};

struct SharedMemory {
  u32 base;
  __device__ __forceinline__ u32 a(int stage) const { return base + stage * kAStageBytes; }
  __device__ __forceinline__ u32 b(int stage) const {
    return base + kBOffset + stage * kBStageBytes;
  }
  __device__ __forceinline__ u32 d(int strip) const {
    return base + kDOffset + strip * kStripBytes;
  }
  __device__ __forceinline__ u32 scales(int stage) const {
    return base + kScaleOffset + stage * kScaleStageBytes;
  }
  __device__ __forceinline__ u32 scales_b(int stage) const {
    return base + kScaleBOffset + stage * kScaleBStageBytes;
  }
  __device__ __forceinline__ u32 full(int stage) const { return base + kBarrierOffset + stage * 8; }
  __device__ __forceinline__ u32 empty(int stage) const {
    return base + kBarrierOffset + (cfg::kStages + stage) * 8;
  }
  // The kernels before this one have ended.
  __device__ __forceinline__ u32 begun() const {
    return base + kBarrierOffset + 2 * cfg::kStages * 8;
  }
  // Split K: partial sums of all ranks are here; this rank's are no longer needed anywhere.
  __device__ __forceinline__ u32 gathered() const { return begun() + 8; }
  __device__ __forceinline__ u32 taken() const { return gathered() + 8; }
};

using Scheduler = TileScheduler<cfg::kRasterBand, cfg::kRasterOfColumns, kHasTail>;
using Ring = RingPosition<cfg::kStages>;

// Narrow tiles of a row of tiles.
__device__ __forceinline__ int tail_across(const Extents& e) {
  if constexpr (!kHasTail) return 0;
  return ceil_div(e.n - e.order.whole_across * cfg::kBlockN, max(cfg::kTailN, 1));
}

__device__ __forceinline__ Scheduler make_scheduler(const Extents& e) {
  const int tiles_m = ceil_div(e.m, cfg::kBlockM * cfg::kClusterM);
  const int first = static_cast<int>(blockIdx.x) / kClusterSize;
  const int step = static_cast<int>(gridDim.x) / kClusterSize;
  if constexpr (kHasTail) {
    return Scheduler(tiles_m, e.order.whole_across, first, step, e.order, tail_across(e));
  } else {
    return Scheduler(tiles_m, ceil_div(e.n, cfg::kBlockN * cfg::kClusterN), first, step, e.order);
  }
}

// Rows of A, up to a multiple of 4: as many as the layout holds scales for. Rounded again where it
// is wanted: a producer beside three consumers has 32 registers.
__device__ __forceinline__ int padded_rows(const Extents& e) {
  return ceil_div(hide_from_optimizer(e.m), 4) * 4;
}

// First row and column of this CTA's tile. The last rows' tile begins early enough to end with
// them, on a multiple of 4, where their scales are 16-byte aligned; what it shares with the tile
// before is computed twice, to the same bits. A cluster's tile beyond the last column is its
// neighbour's again. For the copy engine fills a row outside the tensor much more slowly than it
// fetches one.
__device__ __forceinline__ void tile_origin(const Scheduler& scheduler, const Extents& e, int rank,
                                            int& m0, int& n0) {
  int tile_m, tile_n;
  if (kHasTail && scheduler.is_narrow()) {
    scheduler.narrow_coordinates(tail_across(e), tile_m, tile_n);
    m0 = min(tile_m * cfg::kBlockM, max(padded_rows(e) - cfg::kBlockM, 0));
    n0 = e.order.whole_across * cfg::kBlockN + tile_n * cfg::kTailN;
    return;
  }
  scheduler.coordinates(tile_m, tile_n);
  const int rank_m = cfg::kClusterM > 1 ? rank : 0;
  const int rank_n = cfg::kClusterN > 1 ? rank : 0;
  const int last = max(padded_rows(e) - cfg::kBlockM, 0);
  m0 = min((tile_m * cfg::kClusterM + rank_m) * cfg::kBlockM, last);
  n0 = (tile_n * cfg::kClusterN + rank_n) * cfg::kBlockN;
  if (cfg::kClusterN > 1 && n0 >= e.n) n0 -= cfg::kBlockN;
}

// K-blocks [first, last) of a tile that this rank of the cluster sums.
struct KRange {
  int first, last;
};
__device__ __forceinline__ KRange k_range(int k_blocks, int rank) {
  if constexpr (cfg::kSplits == 1) {
    return {0, k_blocks};
  } else {
    return {k_blocks * rank / cfg::kSplits, k_blocks * (rank + 1) / cfg::kSplits};
  }
}

}  // namespace gemm
