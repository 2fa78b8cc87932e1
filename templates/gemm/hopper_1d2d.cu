// D[m,n] bf16 = sum over K-blocks b of (sum over K in b of A[m,k] * B[n,k]) * sa[b,m] * sb[n/128,b]
//
// A: FP8 [m][lda], scales fp32 [ceil(k/128)][scale_a_ld], m contiguous (1x128).
// B: FP8 [n][ldb], scales fp32 [ceil(n/128)][scale_b_ld] (128x128).
// Each K-block of 128 (or less: kPromote) is summed by the tensor core from zero and then added in fp32:
// acc = fma(partial, sa * sb, acc), in K order. The tensor core keeps about 14 bits of an FP8 sum, which
// is why the partial sums are promoted, and why the scales enter inside the K loop.
//
//            n0            n0 + kBlockN          Warp roles (warpgroups of 4 warps):
//         +---------------------+                  0 .. C-1  consumers: WGMMA, promotion, epilogue
//   m0    | warpgroup 0         |                  C         producer: one lane of its first warp feeds
//         | kBlockM / C rows    |                            the ring; the others idle
//         +---------------------+
//         | warpgroup 1         |                Each consumer owns kBlockM / C rows as strips of 64: the
//         |                     |                partial sums of one strip are promoted while the other
//         +---------------------+                warpgroup keeps the tensor core busy.
//
// Shared memory, from a 1024-byte aligned base (offsets: cfg, from GemmSmemLayout):
//   A ring       kStages x kBlockM x 128 bytes, 128-byte swizzle
//   B ring       kStages x kBlockN x 128 bytes, 128-byte swizzle
//   D staging    kBlockM x kBlockN x 2 bytes (kTmaStore), one region a 64-row strip
//   A scales     kStages x kBlockM x 4 bytes
//   barriers     full[kStages], empty[kStages], 8 bytes each
//
// Barriers        arrivals                                      completes when
//   full[s]       1 (producer, expect_tx) + bytes               A, B and A scales of the stage are here
//   empty[s]      4 warps x consumers x CTAs of the cluster     every reader in the cluster is done
//
// Cluster: with kClusterN = 2 the two CTAs share an A tile (each loads half of it and multicasts), with
// kClusterM = 2 a B tile. A cluster walks tiles together, so both run the same number of steps; a CTA whose
// tile lies outside D computes on zeros and stores nothing.
//
// B's scales are one or a few scalars per K-block: every consumer thread reads them from global memory
// (one broadcast sector, 32 K-blocks a line), one K-block ahead.
//
// Ladder (H200, ratio to the better peer; see BENCHMARKS.md for the run):
//   v1  this structure, wait<0> before each promotion; predicted 0.85-1.0; measured 0.79-0.82 at
//       m <= 128 with k = 7168 (one tile per SM, latency of one consumer), 0.92-1.05 elsewhere: kept
#ifndef OCTILE_EMITTED
#include "gemm/default_prologue.cuh"
#endif

namespace gemm {

constexpr int kWgmmaK = 32;
constexpr int kRowsPerConsumer = cfg::kBlockM / cfg::kConsumerWarpgroups;
constexpr int kStrips = kRowsPerConsumer / 64;
constexpr int kAccumulators = cfg::kBlockN / 2;
constexpr int kClusterSize = cfg::kClusterM * cfg::kClusterN;
constexpr int kAStageBytes = cfg::kBlockM * cfg::kBlockK;
constexpr int kBStageBytes = cfg::kBlockN * cfg::kBlockK;
constexpr int kScaleStageBytes = (cfg::kBlockM * 4 + 127) / 128 * 128;
constexpr int kStripBytes = 64 * cfg::kBlockN * 2;
constexpr int kDBytes = cfg::kTmaStore ? cfg::kBlockM * cfg::kBlockN * 2 : 0;
constexpr int kBOffset = cfg::kStages * kAStageBytes;
constexpr int kDOffset = kBOffset + cfg::kStages * kBStageBytes;
constexpr int kScaleOffset = kDOffset + kDBytes;
constexpr int kBarrierOffset = kScaleOffset + cfg::kStages * kScaleStageBytes;
constexpr int kSmemBytes = kBarrierOffset + 2 * cfg::kStages * 8;
// B columns that are sure to share a 128-wide scale block, whatever the tile's first column.
constexpr int kScaleSegment = gcd(cfg::kBlockN, 128);
constexpr int kScaleSegments = cfg::kBlockN / kScaleSegment;

static_assert(cfg::kBlockK == 128, "one K-block is one scale block");
static_assert(kStrips * 64 * cfg::kConsumerWarpgroups == cfg::kBlockM, "strips of 64 rows");
static_assert(128 % cfg::kPromote == 0 && cfg::kPromote % kWgmmaK == 0, "promotion interval");
static_assert(cfg::kClusterM == 1 || cfg::kClusterN == 1, "a cluster shares one operand");

struct Extents {
  int m, n, k;
  __device__ __forceinline__ int k_blocks() const { return ceil_div(k, 128); }
};

struct SharedMemory {
  u32 base;
  __device__ __forceinline__ u32 a(int stage) const { return base + stage * kAStageBytes; }
  __device__ __forceinline__ u32 b(int stage) const { return base + kBOffset + stage * kBStageBytes; }
  __device__ __forceinline__ u32 d(int strip) const { return base + kDOffset + strip * kStripBytes; }
  __device__ __forceinline__ u32 scales(int stage) const {
    return base + kScaleOffset + stage * kScaleStageBytes;
  }
  __device__ __forceinline__ u32 full(int stage) const { return base + kBarrierOffset + stage * 8; }
  __device__ __forceinline__ u32 empty(int stage) const {
    return base + kBarrierOffset + (cfg::kStages + stage) * 8;
  }
};

using Scheduler = TileScheduler<cfg::kRasterGroup>;
using Ring = RingPosition<cfg::kStages>;

__device__ __forceinline__ Scheduler make_scheduler(const Extents& e) {
  return Scheduler(ceil_div(e.m, cfg::kBlockM * cfg::kClusterM),
                   ceil_div(e.n, cfg::kBlockN * cfg::kClusterN),
                   static_cast<int>(blockIdx.x) / kClusterSize,
                   static_cast<int>(gridDim.x) / kClusterSize);
}

// First row and column of this CTA's tile.
__device__ __forceinline__ void tile_origin(const Scheduler& scheduler, int rank, int& m0, int& n0) {
  int tile_m, tile_n;
  scheduler.coordinates(tile_m, tile_n);
  const int rank_m = cfg::kClusterM > 1 ? rank : 0;
  const int rank_n = cfg::kClusterN > 1 ? rank : 0;
  m0 = (tile_m * cfg::kClusterM + rank_m) * cfg::kBlockM;
  n0 = (tile_n * cfg::kClusterN + rank_n) * cfg::kBlockN;
}

// One K-block of one tile into a stage. A shared operand is loaded as one slice per CTA of the cluster,
// each multicast to all.
__device__ __forceinline__ void load_stage(const SharedMemory& smem, int stage, const TensorMap* a_map,
                                           const TensorMap* b_map, const float* scales, int scale_rows,
                                           int rank, int m0, int n0, int k0) {
  constexpr u16 kEveryone = (1u << kClusterSize) - 1;
  const u32 full = smem.full(stage);
  mbarrier::arrive_expect_tx(full, kAStageBytes + kBStageBytes + scale_rows * 4);

  if constexpr (cfg::kClusterN > 1) {
    constexpr int kSlice = cfg::kBlockM / cfg::kClusterN;
    const int first = rank * kSlice;
    tma::load_2d_multicast(smem.a(stage) + first * 128, a_map, k0, m0 + first, full, kEveryone);
    const int rows = min(kSlice, scale_rows - first);
    if (rows > 0) {
      tma::load_bulk_multicast(smem.scales(stage) + first * 4, scales + first, rows * 4, full,
                               kEveryone);
    }
  } else {
    tma::load_2d(smem.a(stage), a_map, k0, m0, full);
    if (scale_rows > 0) tma::load_bulk(smem.scales(stage), scales, scale_rows * 4, full);
  }

  if constexpr (cfg::kClusterM > 1) {
    constexpr int kSlice = cfg::kBlockN / cfg::kClusterM;
    const int first = rank * kSlice;
    tma::load_2d_multicast(smem.b(stage) + first * 128, b_map, k0, n0 + first, full, kEveryone);
  } else {
    tma::load_2d(smem.b(stage), b_map, k0, n0, full);
  }
}

__device__ __forceinline__ void produce(const SharedMemory& smem, const TensorMap* a_map,
                                        const TensorMap* b_map, const float* scale_a, i64 scale_a_ld,
                                        const Extents& e, int rank) {
  const int k_blocks = e.k_blocks();
  const int scale_extent = ceil_div(e.m, 4) * 4;  // rows the layout holds, padding included
  Ring ring;
  for (Scheduler tiles = make_scheduler(e); tiles.valid(); tiles.advance()) {
    int m0, n0;
    tile_origin(tiles, rank, m0, n0);
    const int scale_rows = max(0, min(cfg::kBlockM, scale_extent - m0));
    const float* scales = scale_a + m0;
    for (int block = 0; block < k_blocks; ++block) {
      // Slots freed by other CTAs of the cluster are written by this CTA's copies too.
      if constexpr (kClusterSize > 1) {
        mbarrier::wait_cluster(smem.empty(ring.stage), ring.phase ^ 1);
      } else {
        mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
      }
      load_stage(smem, ring.stage, a_map, b_map, scales, scale_rows, rank, m0, n0, block * 128);
      scales += scale_a_ld;
      ring.advance();
    }
  }
}

// B's decode scales of one K-block, one per segment of the tile's columns.
struct BlockScales {
  float value[kScaleSegments];
};

struct ScaleRows {
  const float* row[kScaleSegments];

  __device__ __forceinline__ ScaleRows(const float* scale_b, i64 ld, int n0, int n) {
    const int last = (n - 1) / 128;
#pragma unroll
    for (int s = 0; s < kScaleSegments; ++s) {
      // Segments beyond n multiply zeros; they only must not read beyond the array.
      row[s] = scale_b + min((n0 + s * kScaleSegment) / 128, last) * ld;
    }
  }
  __device__ __forceinline__ BlockScales at(int block) const {
    BlockScales scales;
#pragma unroll
    for (int s = 0; s < kScaleSegments; ++s) scales.value[s] = __ldg(row[s] + block);
    return scales;
  }
};

// acc = fma(partial, sa * sb, acc): the CUDA cores' half of the product.
__device__ __forceinline__ void promote(float (&acc)[kAccumulators],
                                        const float (&partial)[kAccumulators], float scale_a0,
                                        float scale_a1, const BlockScales& scale_b) {
#pragma unroll
  for (int s = 0; s < kScaleSegments; ++s) {
    const float upper = __fmul_rn(scale_a0, scale_b.value[s]);
    const float lower = __fmul_rn(scale_a1, scale_b.value[s]);
#pragma unroll
    for (int j = s * kScaleSegment / 8; j < (s + 1) * kScaleSegment / 8; ++j) {
      acc[4 * j + 0] = __fmaf_rn(partial[4 * j + 0], upper, acc[4 * j + 0]);
      acc[4 * j + 1] = __fmaf_rn(partial[4 * j + 1], upper, acc[4 * j + 1]);
      acc[4 * j + 2] = __fmaf_rn(partial[4 * j + 2], lower, acc[4 * j + 2]);
      acc[4 * j + 3] = __fmaf_rn(partial[4 * j + 3], lower, acc[4 * j + 3]);
    }
  }
}

__device__ __forceinline__ void release_stage(const SharedMemory& smem, int stage, int lane) {
  if constexpr (kClusterSize > 1) {
    if (lane < kClusterSize) mbarrier::arrive_cluster(smem.empty(stage), lane);
  } else {
    if (lane == 0) mbarrier::arrive(smem.empty(stage));
  }
}

// All K-blocks of a tile into acc.
__device__ __forceinline__ void accumulate(const SharedMemory& smem, Ring& ring,
                                           const ScaleRows& scale_b, int k_blocks, int consumer,
                                           int warp, int lane, float (&acc)[kStrips][kAccumulators]) {
  using Mma = wgmma::Mma<cfg::kBlockN, cfg::kAIsE5M2, cfg::kBIsE5M2>;
  const int first_row = consumer * kRowsPerConsumer;
  const int scale_row = first_row + warp * 16 + lane / 4;
  BlockScales next = scale_b.at(0);
  for (int block = 0; block < k_blocks; ++block) {
    const BlockScales block_scales = next;
    if (block + 1 < k_blocks) next = scale_b.at(block + 1);
    mbarrier::wait(smem.full(ring.stage), ring.phase);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      // Read before the stage can be handed back.
      const u32 scales = smem.scales(ring.stage) + (scale_row + strip * 64) * 4;
      const float scale_a0 = load_shared_f32(scales);
      const float scale_a1 = load_shared_f32(scales + 8 * 4);
      const u64 a = wgmma::descriptor(smem.a(ring.stage) + (first_row + strip * 64) * 128);
      const u64 b = wgmma::descriptor(smem.b(ring.stage));
#pragma unroll
      for (int part = 0; part < 128 / cfg::kPromote; ++part) {
        float partial[kAccumulators];
        wgmma::pin(partial);
        wgmma::fence();
#pragma unroll
        for (int i = 0; i < cfg::kPromote / kWgmmaK; ++i) {
          const int step = (part * cfg::kPromote / kWgmmaK + i) * (kWgmmaK >> 4);
          Mma::run(partial, a + step, b + step, i != 0);
        }
        wgmma::commit();
        wgmma::pin(partial);
        wgmma::wait<0>();
        if (strip == kStrips - 1 && part == 128 / cfg::kPromote - 1) {
          release_stage(smem, ring.stage, lane);
        }
        promote(acc[strip], partial, scale_a0, scale_a1, block_scales);
      }
    }
    ring.advance();
  }
}

__device__ __forceinline__ void store_tile(const SharedMemory& smem, const TensorMap* d_map, u16* d,
                                           i64 ldd, const Extents& e, int m0, int n0, int consumer,
                                           int warp, const float (&acc)[kStrips][kAccumulators]) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int row = m0 + consumer * kRowsPerConsumer;
  if constexpr (cfg::kTmaStore) {
    // The staging area may still be read by the previous tile's store.
    if (thread == 0) tma::wait_stores_read<0>();
    named_barrier(1 + consumer, 128);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      stage_for_tma<cfg::kBlockN>(acc[strip], smem.d(consumer * kStrips + strip), warp);
    }
    tma::fence_async_shared();
    named_barrier(1 + consumer, 128);
    if (thread == 0) {
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        if (row + strip * 64 < e.m) {
          store_boxes<cfg::kBlockN>(d_map, smem.d(consumer * kStrips + strip), row + strip * 64, n0);
        }
      }
      tma::commit_stores();
    }
  } else {
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      store_direct<cfg::kBlockN>(acc[strip], d, ldd, row + strip * 64 + warp * 16, n0, e.m, e.n);
    }
  }
}

__device__ __forceinline__ void consume(const SharedMemory& smem, const TensorMap* d_map,
                                        const float* scale_b, i64 scale_b_ld, u16* d, i64 ldd,
                                        const Extents& e, int rank) {
  const int consumer = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int k_blocks = e.k_blocks();
  Ring ring;
  for (Scheduler tiles = make_scheduler(e); tiles.valid(); tiles.advance()) {
    int m0, n0;
    tile_origin(tiles, rank, m0, n0);
    float acc[kStrips][kAccumulators] = {};
    accumulate(smem, ring, ScaleRows(scale_b, scale_b_ld, n0, e.n), k_blocks, consumer, warp, lane,
               acc);
    store_tile(smem, d_map, d, ldd, e, m0, n0, consumer, warp, acc);
  }
  // Shared memory must outlive the copy engine's reads of it.
  if (cfg::kTmaStore && threadIdx.x % 128 == 0) tma::wait_stores_read<0>();
}

__device__ __forceinline__ void init_barriers(const SharedMemory& smem) {
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < cfg::kStages; ++stage) {
      mbarrier::init(smem.full(stage), 1);
      mbarrier::init(smem.empty(stage), 4 * cfg::kConsumerWarpgroups * kClusterSize);
    }
    mbarrier::fence_init();
  }
  if constexpr (kClusterSize > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
}

}  // namespace gemm

extern "C" __global__ void __launch_bounds__(cfg::kThreads, 1)
    OCTILE_KERNEL_NAME(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                       const __grid_constant__ TensorMap d_map, const float* scale_a,
                       const float* scale_b, void* d, i64 scale_a_ld, i64 scale_b_ld, i64 ldd, int m,
                       int n, int k) {
  extern __shared__ __align__(1024) u8 dynamic_smem[];
  const gemm::SharedMemory smem{shared_address(dynamic_smem)};
  const gemm::Extents extents{m, n, k};
  const int rank = gemm::kClusterSize > 1 ? static_cast<int>(cluster_rank()) : 0;
  gemm::init_barriers(smem);

  if (threadIdx.x >= cfg::kConsumerWarpgroups * 128) {
    release_registers<cfg::kProducerRegisters>();
    if (threadIdx.x < cfg::kConsumerWarpgroups * 128 + 32 && elect_one()) {
      tma::prefetch_map(&a_map);
      tma::prefetch_map(&b_map);
      gemm::produce(smem, &a_map, &b_map, scale_a, scale_a_ld, extents, rank);
    }
    __syncwarp();
  } else {
    acquire_registers<cfg::kConsumerRegisters>();
    gemm::consume(smem, &d_map, scale_b, scale_b_ld, static_cast<u16*>(d), ldd, extents, rank);
  }
  // A CTA's shared memory must outlive its peers' multicasts and arrivals.
  if constexpr (gemm::kClusterSize > 1) cluster_sync();
}
