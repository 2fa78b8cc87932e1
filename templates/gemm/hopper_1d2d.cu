// D[m,n] bf16 = sum over K-blocks b of (sum over K in b of A[m,k] * B[n,k]) * sa[b,m] * sb[n/128,b]
//
// A: FP8 [m][lda], scales fp32 [ceil(k/128)][scale_a_ld], m contiguous (1x128).
// B: FP8 [n][ldb], scales fp32 [ceil(n/128)][scale_b_ld] (128x128).
// Each K-block of 128 (or less: kPromote) is summed by the tensor core from zero and then added in
// fp32: acc = fma(partial, sa * sb, acc), in K order. The tensor core keeps about 14 bits of an FP8
// sum, which is why the partial sums are promoted, and why the scales enter inside the K loop.
//
//            n0            n0 + kBlockN          Warp roles (warpgroups of 4 warps):
//         +---------------------+                  0 .. C-1  consumers: WGMMA, promotion, epilogue
//   m0    | warpgroup 0         |                  C         producer: one lane of its first warp
//   feeds
//         | kBlockM / C rows    |                            the ring; the others idle
//         +---------------------+
//         | warpgroup 1         |                Each consumer owns kBlockM / C rows as strips of
//         64: the |                     |                partial sums of one strip are promoted
//         while the other
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
//   full[s]       1 (producer, expect_tx) + bytes               A, B and A scales of the stage are
//   here empty[s]      4 warps x consumers x CTAs of the cluster     every reader in the cluster is
//   done
//
// Cluster: with kClusterN = 2 the two CTAs share an A tile (each loads half of it and multicasts),
// with kClusterM = 2 a B tile. A cluster walks tiles together, so both run the same number of
// steps; a CTA whose tile lies outside D computes on zeros and stores nothing.
//
// B's scales are one or a few scalars per K-block: every consumer thread reads them from global
// memory (one broadcast sector, 32 K-blocks a line), one K-block ahead.
//
// Ladder (one H200 each, best configuration per shape, us; peers' times of the same shapes in
// docs):
//   v1  one product at a time: wait<0>, promote. Predicted within 15 % of the peers at m >= 4096.
//       64x2112x7168 12.1, 64x4096x7168 14.1, 64x7168x16384 36.2, 128x7168x16384 40.5. Kept as
//       kUnroll = 1.
//   v2  arrive on a peer's `empty` at CTA scope instead of cluster scope. Predicted: clusters stop
//   paying a
//       MEMBAR.ALL.GPU per K-block. 256x128 tiles at 4096x24576x1536, cluster 1x2: 346 -> 269.
//       Kept.
//   v3  kUnroll K-blocks a pass, kInFlight partial sums: the tensor core works while a warpgroup
//   promotes.
//       Predicted -30 % per K-block where one consumer works alone. 64x2112x7168 9.9,
//       64x4096x7168 11.6, 64x7168x16384 33.2, 128x7168x16384 36.8. Kept.
//   v4  flat promotion loop, scales of tiles that straddle blocks picked from two or three rows.
//   Predicted:
//       tiles of 192 leave local memory. 128x192 at 128x24576x1536 95 -> 15.0, 4096x2112x7168
//       107.7. Kept.
#ifndef OCTILE_EMITTED
#include "gemm/default_prologue.cuh"
#endif

namespace wgmma {
OCTILE_INSTANTIATE_MMA(OCTILE_WGMMA_N)
}

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
// Columns sure to share a 128-wide scale block, whatever the tile's first column, and how many
// blocks a tile can touch.
constexpr int kScaleSegment = gcd(cfg::kBlockN, 128);
constexpr int kScaleRows = ceil_div(cfg::kBlockN - kScaleSegment, 128) + 1;

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
  __device__ __forceinline__ u32 b(int stage) const {
    return base + kBOffset + stage * kBStageBytes;
  }
  __device__ __forceinline__ u32 d(int strip) const {
    return base + kDOffset + strip * kStripBytes;
  }
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
  return Scheduler(
      ceil_div(e.m, cfg::kBlockM * cfg::kClusterM), ceil_div(e.n, cfg::kBlockN * cfg::kClusterN),
      static_cast<int>(blockIdx.x) / kClusterSize, static_cast<int>(gridDim.x) / kClusterSize);
}

// First row and column of this CTA's tile.
__device__ __forceinline__ void tile_origin(const Scheduler& scheduler, int rank, int& m0,
                                            int& n0) {
  int tile_m, tile_n;
  scheduler.coordinates(tile_m, tile_n);
  const int rank_m = cfg::kClusterM > 1 ? rank : 0;
  const int rank_n = cfg::kClusterN > 1 ? rank : 0;
  m0 = (tile_m * cfg::kClusterM + rank_m) * cfg::kBlockM;
  n0 = (tile_n * cfg::kClusterN + rank_n) * cfg::kBlockN;
}

// One K-block of one tile into a stage. A shared operand is loaded as one slice per CTA of the
// cluster, each multicast to all.
__device__ __forceinline__ void load_stage(const SharedMemory& smem, int stage,
                                           const TensorMap* a_map, const TensorMap* b_map,
                                           const float* scales, int scale_rows, int rank, int m0,
                                           int n0, int k0) {
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
                                        const TensorMap* b_map, const float* scale_a,
                                        i64 scale_a_ld, const Extents& e, int rank) {
  const int k_blocks = e.k_blocks();
  const int scale_extent = ceil_div(e.m, 4) * 4;  // rows the layout holds, padding included
  Ring ring;
  for (Scheduler tiles = make_scheduler(e); tiles.valid(); tiles.advance()) {
    int m0, n0;
    tile_origin(tiles, rank, m0, n0);
    const int scale_rows = max(0, min(cfg::kBlockM, scale_extent - m0));
    const float* scales = scale_a + m0;
    for (int block = 0; block < k_blocks; ++block) {
      mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
      load_stage(smem, ring.stage, a_map, b_map, scales, scale_rows, rank, m0, n0, block * 128);
      scales += scale_a_ld;
      ring.advance();
    }
  }
}

// B's decode scales of one K-block, one per scale row the tile touches.
struct BlockScales {
  float value[kScaleRows];
};

struct ScaleRows {
  const float* row[kScaleRows];
  int offset;  // of the tile's first column in its scale block

  __device__ __forceinline__ ScaleRows(const float* scale_b, i64 ld, int n0, int n)
      : offset(n0 % 128) {
    const int last = (n - 1) / 128;
#pragma unroll
    for (int r = 0; r < kScaleRows; ++r) {
      // Columns beyond n are zeros times any scale; they only must not read beyond the array.
      row[r] = scale_b + min(n0 / 128 + r, last) * ld;
    }
  }
  __device__ __forceinline__ BlockScales at(int block) const {
    BlockScales scales;
#pragma unroll
    for (int r = 0; r < kScaleRows; ++r) scales.value[r] = __ldg(row[r] + block);
    return scales;
  }
  // Which of the rows column group j (8 columns) takes.
  __device__ __forceinline__ float pick(const float (&products)[kScaleRows], int j) const {
    if constexpr (kScaleRows == 1) {
      return products[0];
    } else {
      const int r = (offset + j * 8 / kScaleSegment * kScaleSegment) / 128;
      float product = products[0];
#pragma unroll
      for (int i = 1; i < kScaleRows; ++i) product = r == i ? products[i] : product;
      return product;
    }
  }
};

// acc = fma(partial, sa * sb, acc): the CUDA cores' half of the product.
__device__ __forceinline__ void promote(float (&acc)[kAccumulators],
                                        const float (&partial)[kAccumulators], float scale_a0,
                                        float scale_a1, const BlockScales& block_scales,
                                        const ScaleRows& scale_b) {
  float upper[kScaleRows];
  float lower[kScaleRows];
#pragma unroll
  for (int r = 0; r < kScaleRows; ++r) {
    upper[r] = __fmul_rn(scale_a0, block_scales.value[r]);
    lower[r] = __fmul_rn(scale_a1, block_scales.value[r]);
  }
  // One flat loop: nested by segment, ptxas kept the accumulators of some widths in local memory.
#pragma unroll
  for (int j = 0; j < cfg::kBlockN / 8; ++j) {
    const float u = scale_b.pick(upper, j);
    const float l = scale_b.pick(lower, j);
    acc[4 * j + 0] = __fmaf_rn(partial[4 * j + 0], u, acc[4 * j + 0]);
    acc[4 * j + 1] = __fmaf_rn(partial[4 * j + 1], u, acc[4 * j + 1]);
    acc[4 * j + 2] = __fmaf_rn(partial[4 * j + 2], l, acc[4 * j + 2]);
    acc[4 * j + 3] = __fmaf_rn(partial[4 * j + 3], l, acc[4 * j + 3]);
  }
}

// One arrival a warp and CTA of the cluster: __syncwarp puts every lane's reads before it.
__device__ __forceinline__ void release_stage(const SharedMemory& smem, int stage, int lane) {
  __syncwarp();
  if constexpr (kClusterSize > 1) {
    if (lane < kClusterSize) mbarrier::arrive_cluster(smem.empty(stage), lane);
  } else {
    if (lane == 0) mbarrier::arrive(smem.empty(stage));
  }
}

// What of a consumer thread does not change over its tiles.
struct Consumer {
  SharedMemory smem;
  int index;  // which consumer warpgroup
  int warp;   // of the warpgroup
  int lane;
};

// kBlocks consecutive K-blocks into acc, as kBlocks * kStrips products of 64 rows. kInFlight
// products are issued before the first of them is promoted, each into partial sums of its own, so
// that the tensor core works while the CUDA cores promote.
template <int kBlocks, int kInFlight>
__device__ __forceinline__ void multiply_blocks(const Consumer& self, Ring& ring,
                                                const ScaleRows& scale_b, int block, int k_blocks,
                                                BlockScales& next,
                                                float (&acc)[kStrips][kAccumulators]) {
  using Mma = wgmma::Mma<cfg::kBlockN, cfg::kAIsE5M2, cfg::kBIsE5M2>;
  constexpr int kParts = 128 / cfg::kPromote;
  constexpr int kProducts = kBlocks * kStrips * kParts;
  static_assert(kProducts % kInFlight == 0, "whole groups of products");
  const int first_row = self.index * kRowsPerConsumer;
  const int scale_row = first_row + self.warp * 16 + self.lane / 4;
  BlockScales block_scales[kBlocks];
  int stage[kBlocks];
#pragma unroll
  for (int group = 0; group < kProducts / kInFlight; ++group) {
    float partial[kInFlight][kAccumulators];
    float scale_a0[kInFlight];
    float scale_a1[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int product = group * kInFlight + i;
      const int b = product / (kStrips * kParts);
      const int strip = product / kParts % kStrips;
      const int part = product % kParts;
      if (strip == 0 && part == 0) {
        block_scales[b] = next;
        if (block + b + 1 < k_blocks) next = scale_b.at(block + b + 1);
        stage[b] = ring.stage;
        mbarrier::wait(self.smem.full(ring.stage), ring.phase);
        ring.advance();
      }
      // Read before the stage can be handed back.
      const u32 scales = self.smem.scales(stage[b]) + (scale_row + strip * 64) * 4;
      scale_a0[i] = load_shared_f32(scales);
      scale_a1[i] = load_shared_f32(scales + 8 * 4);
      const u64 a_tile = wgmma::descriptor(self.smem.a(stage[b]) + (first_row + strip * 64) * 128);
      const u64 b_tile = wgmma::descriptor(self.smem.b(stage[b]));
      wgmma::pin(partial[i]);
      wgmma::fence();
#pragma unroll
      for (int k = 0; k < cfg::kPromote / kWgmmaK; ++k) {
        const int step = (part * cfg::kPromote / kWgmmaK + k) * (kWgmmaK >> 4);
        Mma::run(partial[i], a_tile + step, b_tile + step, k != 0);
      }
      wgmma::commit();
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int product = group * kInFlight + i;
      const int b = product / (kStrips * kParts);
      const int strip = product / kParts % kStrips;
      wgmma::wait_for(kInFlight - 1 - i);
      wgmma::pin(partial[i]);
      if ((product + 1) % (kStrips * kParts) == 0) release_stage(self.smem, stage[b], self.lane);
      promote(acc[strip], partial[i], scale_a0[i], scale_a1[i], block_scales[b], scale_b);
    }
  }
}

// All K-blocks of a tile into acc, kUnroll at a time.
__device__ __forceinline__ void accumulate(const Consumer& self, Ring& ring,
                                           const ScaleRows& scale_b, int k_blocks,
                                           float (&acc)[kStrips][kAccumulators]) {
  BlockScales next = scale_b.at(0);
  int block = 0;
  for (; block + cfg::kUnroll <= k_blocks; block += cfg::kUnroll) {
    multiply_blocks<cfg::kUnroll, cfg::kInFlight>(self, ring, scale_b, block, k_blocks, next, acc);
  }
  if constexpr (cfg::kUnroll > 1) {
    for (; block < k_blocks; ++block) {
      multiply_blocks<1, 1>(self, ring, scale_b, block, k_blocks, next, acc);
    }
  }
}

__device__ __forceinline__ void store_tile(const Consumer& self, const TensorMap* d_map, u16* d,
                                           i64 ldd, const Extents& e, int m0, int n0,
                                           const float (&acc)[kStrips][kAccumulators]) {
  const int row = m0 + self.index * kRowsPerConsumer;
  if constexpr (cfg::kTmaStore) {
    const bool issuer = threadIdx.x % 128 == 0;
    // The staging area may still be read by the previous tile's store.
    if (issuer) tma::wait_stores_read<0>();
    named_barrier(1 + self.index, 128);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      stage_for_tma<cfg::kBlockN>(acc[strip], self.smem.d(self.index * kStrips + strip), self.warp);
    }
    tma::fence_async_shared();
    named_barrier(1 + self.index, 128);
    if (issuer) {
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        if (row + strip * 64 < e.m) {
          store_boxes<cfg::kBlockN>(d_map, self.smem.d(self.index * kStrips + strip),
                                    row + strip * 64, n0);
        }
      }
      tma::commit_stores();
    }
  } else {
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      store_direct<cfg::kBlockN>(acc[strip], d, ldd, row + strip * 64 + self.warp * 16, n0, e.m,
                                 e.n);
    }
  }
}

__device__ __forceinline__ void consume(const SharedMemory& smem, const TensorMap* d_map,
                                        const float* scale_b, i64 scale_b_ld, u16* d, i64 ldd,
                                        const Extents& e, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  const Consumer self{smem, __shfl_sync(0xffffffffu, thread / 128, 0), thread / 32 % 4,
                      thread % 32};
  const int k_blocks = e.k_blocks();
  Ring ring;
  for (Scheduler tiles = make_scheduler(e); tiles.valid(); tiles.advance()) {
    int m0, n0;
    tile_origin(tiles, rank, m0, n0);
    float acc[kStrips][kAccumulators] = {};
    accumulate(self, ring, ScaleRows(scale_b, scale_b_ld, n0, e.n), k_blocks, acc);
    store_tile(self, d_map, d, ldd, e, m0, n0, acc);
  }
  // Shared memory must outlive the copy engine's reads of it.
  if (cfg::kTmaStore && thread % 128 == 0) tma::wait_stores_read<0>();
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
    OCTILE_KERNEL_NAME(const __grid_constant__ TensorMap a_map,
                       const __grid_constant__ TensorMap b_map,
                       const __grid_constant__ TensorMap d_map, const float* scale_a,
                       const float* scale_b, void* d, i64 scale_a_ld, i64 scale_b_ld, i64 ldd,
                       int m, int n, int k) {
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
