// Common parts of all roles and policies of the GEMM: the shape of a tile, the shared-memory map
// and a thread's place in it. kernel.cu has the picture.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/default_prologue.cuh"
#endif

namespace gemm {

// Enumerators, because NVRTC emits a variable for every constexpr, which costs a compile.
enum : int {
  // A consumer owns strips of 64 rows, 16 of each warp (which: kWarpRows, kStripStep). A tile of
  // fewer than 64 rows loads and stores only its own rows; WGMMA still multiplies 64, and the
  // results of the others are never stored.
  // Consumers side by side have the same rows and share the columns.
  kConsumersAcross = OCTILE_CONSUMERS_ACROSS,
  kRowsPerConsumer =
      cfg::kBlockM < 64 ? 64 : cfg::kBlockM * kConsumersAcross / cfg::kConsumerWarpgroups,
  kStrips = kRowsPerConsumer / 64,
  kStripRows = cfg::kBlockM < 64 ? cfg::kBlockM : 64,
  kConsumerColumns = cfg::kBlockN / kConsumersAcross,
  // A warp has 16 rows of a strip, in all columns of its consumer. Warps that multiply by
  // themselves share the columns of a short tile: so many of them lie side by side.
  kWarpsAcross = OCTILE_WARPS_ACROSS,
  kWarpColumns = kConsumerColumns / kWarpsAcross,
  kAccumulators = kWarpColumns / 2,  // sums of a thread in a strip
  // K-blocks that the tensor core sums before a promotion in fp32; 0: all of them.
  kIntervalBlocks = ceil_div(cfg::kPromote, 128),
  kConsumerThreads = 128 * cfg::kConsumerWarpgroups,
  // Tail tiles have fewer columns and use the same stages.
  kHasTail = cfg::kTailN > 0,
  kTailAccumulators = (kHasTail ? cfg::kTailN : cfg::kBlockN) / 2,
  // CTAs of a cluster: those that share an operand, times those that share a tile's K.
  kShareSize = cfg::kClusterM * cfg::kClusterN,
  kClusterSize = kShareSize * cfg::kSplits,
  kWholeCluster = (1 << kShareSize) - 1,  // as a multicast mask
  kBarriers = 2 * cfg::kStages + 1 + (cfg::kSplits > 1 ? 2 : 0),
};

static_assert(cfg::kBlockK == 128, "one K-block is one scale block");
static_assert(kStrips * 64 * cfg::kConsumerWarpgroups ==
                  (cfg::kBlockM < 64 ? 64 : cfg::kBlockM * kConsumersAcross),
              "strips of 64 rows");
static_assert(kConsumersAcross == 1 ||
                  (kConsumersAcross == cfg::kConsumerWarpgroups && kWarpsAcross == 1 && !kHasTail),
              "consumers that share columns have all rows");
static_assert(kWarpsAcross == 1 ||
                  (kWarpsAcross * kStripRows <= 64 && kWarpColumns % 8 == 0 && !kHasTail),
              "warps without rows of their own take columns, in groups of 8");
static_assert(cfg::kSplits == 1 || kShareSize == 1, "a cluster splits or shares");
static_assert(cfg::kPromote == 0 || cfg::kPromote == 32 || cfg::kPromote == 64 ||
                  cfg::kPromote == 128 || cfg::kPromote == 256 || cfg::kPromote == 512,
              "promotion interval");
static_assert(kIntervalBlocks == 1 || (cfg::kUnroll == 1 && !kHasTail),
              "a pass of long sums is one K-block, and all tiles are whole");
static_assert(cfg::kClusterM == 1 || cfg::kClusterN == 1, "a cluster shares one operand");
static_assert(!kHasTail || (kClusterSize == 1 && 2 * cfg::kTailN == cfg::kBlockN &&
                            128 % cfg::kBlockN == 0 && cfg::kInFlight == 1),
              "a tail tile is half of a tile in one scale block, with one WGMMA group at a time");
// The memory map: each region is large enough and ends before the next. (The regions of D and of
// the scales are checked against their policies in kernel.cu.)
static_assert(cfg::kAStageBytes >= cfg::kBlockM * cfg::kBlockK && cfg::kAStageBytes % 1024 == 0 &&
                  cfg::kBStageBytes >= cfg::kBlockN * cfg::kBlockK && cfg::kBStageBytes % 1024 == 0,
              "a stage holds its operands, aligned for the 128-byte swizzle");
static_assert(cfg::kBOffset >= cfg::kStages * cfg::kAStageBytes && cfg::kBOffset % 1024 == 0,
              "B's ring begins behind A's");
static_assert(cfg::kDOffset >= cfg::kBOffset + cfg::kStages * cfg::kBStageBytes &&
                  cfg::kDOffset % 1024 == 0,
              "D begins behind B's ring");
static_assert(cfg::kSmemBytes >= cfg::kBarrierOffset + kBarriers * 8 &&
                  cfg::kBarrierOffset % 8 == 0,
              "the barriers lie within shared memory");

// The facts that are the same for every CTA of a launch.
struct Extents {
  int m, n, k;
  TileOrder order;
  // The caller's offsets or counts of groups; how many groups, or GEMMs of a batch, there are; and
  // how many tokens the K of groups has.
  const int* group_rows;
  int groups, tokens;
};

// A tile as a walk hands it out: its first row and column. Tiles may overlap; `own_row` is the
// first row of those that no other tile has, and is set for outputs that store or count each
// element once.
struct Tile {
  int m0, n0;
  int own_row;
  // `group` is the tile's group or its GEMM in a batch. Groups also have the row behind the group's
  // last, and the row behind the last that exists.
  int group, end, last;
};

// K-blocks [first, last).
struct KRange {
  int first, last;
};

// Rows and columns of D that exist.
struct Limits {
  int m, n;
};

// Where D lies, and what its stores read and write beside it.
struct Destination {
  const TensorMap* map;  // for stores by TMA
  void* d;
  i64 ldd;
  const void* bias;  // [n], if the problem has one
  u32* sentry;       // if the problem has one (output/watch.cuh)
  float* d_scale;    // [ceil(n/128)][scale_d_ld], if D is FP8
  i64 scale_d_ld;
};
// A matrix of a batch, which `d` is. A field of Destination would change other kernels' code.
struct MatrixDestination : Destination {
  int matrix;
};

struct SharedMemory {
  u32 base;
  __device__ __forceinline__ u32 a(int stage) const { return base + stage * cfg::kAStageBytes; }
  __device__ __forceinline__ u32 b(int stage) const {
    return base + cfg::kBOffset + stage * cfg::kBStageBytes;
  }
  // The output's region.
  __device__ __forceinline__ u32 d() const { return base + cfg::kDOffset; }
  __device__ __forceinline__ u32 scales_a(int stage) const {
    return base + cfg::kScaleAOffset + stage * cfg::kScaleAStageBytes;
  }
  __device__ __forceinline__ u32 scales_b(int stage) const {
    return base + cfg::kScaleBOffset + stage * cfg::kScaleBStageBytes;
  }
  __device__ __forceinline__ u32 full(int stage) const {
    return base + cfg::kBarrierOffset + stage * 8;
  }
  __device__ __forceinline__ u32 empty(int stage) const {
    return base + cfg::kBarrierOffset + (cfg::kStages + stage) * 8;
  }
  // The preceding kernels of the stream have ended.
  __device__ __forceinline__ u32 pdl_ready() const {
    return base + cfg::kBarrierOffset + 2 * cfg::kStages * 8;
  }
  // Split K: the partial sums of all ranks are here; no rank still needs what this one sent.
  __device__ __forceinline__ u32 gathered() const { return pdl_ready() + 8; }
  __device__ __forceinline__ u32 taken() const { return gathered() + 8; }
};

using Ring = RingPosition<cfg::kStages>;

}  // namespace gemm
