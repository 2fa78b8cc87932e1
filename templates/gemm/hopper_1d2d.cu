// clang-format off
// D[m,n] bf16 = sum over K-blocks b of (sum over K in b of A[m,k] * B[n,k]) * sa[b,m] * sb[n/128,b]
//
// A: FP8 [m][lda], scales fp32 [ceil(k/128)][scale_a_ld], m contiguous (1x128).
// B: FP8 [n][ldb], scales fp32 [ceil(n/128)][scale_b_ld] (128x128).
// Each K-block of 128 (or less: kPromote) is summed by the tensor core from zero and then added in
// fp32: acc = fma(partial, sa * sb, acc), in K order. The tensor core keeps about 14 bits of an FP8
// sum, which is why the partial sums are promoted, and why the scales enter inside the K loop.
//
//            n0            n0 + kBlockN          Warp roles (C warpgroups of 4 warps, then 4 more):
//         +---------------------+                  warpgroups 0 .. C-1   WGMMA, promotion, epilogue
//   m0    | warpgroup 0         |                  warp 4C, one lane     feeds the ring
//         | kBlockM / C rows    |                  warp 4C + 1           writes B's scales into it
//         +---------------------+
//         | warpgroup 1         |                Each consumer owns kBlockM / C rows as strips of 64
//         |                     |                (a tile of 16 or 32 rows is one strip, of which
//         +---------------------+                only those rows are loaded and stored).
//
// Shared memory, from a 1024-byte aligned base (offsets: cfg, from GemmSmemLayout):
//   A ring       kStages x kBlockM x 128 bytes, 128-byte swizzle
//   B ring       kStages x kBlockN x 128 bytes, 128-byte swizzle
//   D staging    kBlockM x kBlockN x 2 bytes (kTmaStore), one region a strip; or, with kSplits > 1,
//                the partial sums of this rank's columns from every rank, fp32
//   A scales     kStages x kBlockM x 4 bytes
//   B scales     kStages x 16 bytes
//   barriers     full[kStages], empty[kStages], then gathered, taken (kSplits > 1); 8 bytes each
//
// Barriers    arrivals                                       completes when
//   full[s]   producer (expect_tx) + scale warp + bytes      both operands and scales are here
//   empty[s]  4 warps x consumers x CTAs that share          every reader in the cluster is done
//   gathered  thread 0 (expect_tx) + bytes                   every rank's sums of my columns are here
//   taken     4 warps x consumers x ranks                    no rank still reads what I sent it
//
// Cluster: with kClusterN = 2 the two CTAs share an A tile (each loads half of it and multicasts),
// with kClusterM = 2 a B tile. A cluster walks tiles together, so both run the same number of
// steps; a CTA whose tile lies outside D computes on zeros and stores nothing. With kSplits > 1 the
// ranks of a cluster work on one tile, each on its range of K-blocks; then each sums its share of
// the columns over all ranks, in rank order, which is K order.
//
// Overlap (programmatic dependent launch): the next kernel of the stream may start as soon as this
// one's CTAs leave room; of itself it asks for weights only until this one has ended.
//
// Ladder (H200; us; numbers of one line are of one run, lines are not comparable: cards and clocks
// differ by 10 %):
//   v1   one product at a time: wait<0>, promote. Predicted within 15 % of the peers at m >= 4096.
//        64x2112x7168 12.1, 64x4096x7168 14.1, 64x7168x16384 36.2. Kept as kUnroll = 1.
//   v2   arrive on a peer's `empty` at CTA scope instead of cluster scope. Predicted: clusters stop
//        paying a MEMBAR.ALL.GPU a K-block. 4096x24576x1536, 256x128, cluster 1x2: 346 -> 269. Kept.
//   v3   kUnroll K-blocks a pass, kInFlight partial sums. Predicted -30 % a K-block where one
//        consumer works alone. 64x2112x7168 12.1 -> 9.9, 64x4096x7168 14.1 -> 11.6. Kept.
//   v4   flat promotion loop, scales of straddling tiles picked from two or three rows. Predicted:
//        tiles of 192 leave local memory. 128x24576x1536 at 128x192 95 -> 15.0. Kept.
//   v5   a product is issued as soon as one is promoted, not a group after a group. Predicted -15 %
//        a K-block. The consumer alone at 64x64: 149 ns (two a group) -> 123 ns (4 blocks, 2 in
//        flight). Kept. 256x128, kUnroll 1 -> 2: 4096x24576x1536 300 -> 288.
//   v6   K split over a cluster, sums exchanged by st.async onto the receiver's barrier. Predicted
//        64x2112x7168 9.9 -> 6.5. 10.3 -> 8.1: the rest is the first byte's latency. Kept.
//   v7   weights of the first stages before griddepcontrol.wait. Predicted -1 to -2. 64x2112x7168
//        8.7 -> 7.3, 64x7168x2048 7.0 -> 5.9, 64x4096x7168 11.5 -> 10.2. Kept (OCTILE_RUN_OVERLAP).
//   v8   in an ordinary launch A before B: B of all stages first holds A back by the copy engine's
//        queue. 64x7168x2048 8.0 -> 7.0. Kept.
//   v9   B's scales through shared memory: without any, 4 to 6 % less (ablation). By the producer's
//        whole warp: 64x2112x7168 11.2 -> 21.3, each TMA in a loop over lanes; dropped. By a warp of
//        their own: 4096x7168x2048 106.8 -> 103.4, 4096x24576x1536 288 -> 281. Kept.
//   v10  the producer's addresses advanced, not computed. Predicted: small tiles are bound by its
//        instructions. 64x2112x7168 unsplit 14.0 -> 11.7. Kept. The ring unrolled besides: 11.6 to
//        12.4, and 60 % more code; dropped.
//   v11  two CTAs an SM. Predicted: one's start and end hide behind the other. 64x32768x512 9.8 ->
//        8.3, 64x24576x1536 13.3 -> 13.1. Kept.
//   v12  four K-blocks of B asked for at a time, for longer DRAM bursts. 64x7168x16384 33.2 -> 33.0,
//        64x24576x1536 13.8 -> 14.1; dropped. Loads without any product take 31 to 32: the limit.
//   v13  tiles of 16 and 32 rows. Predicted: half of the loads. 16x4096x7168 11.5 -> 11.1. Kept.
//   v14  B's scales 32 K-blocks at a time, with barriers of their own. Predicted -1 %: one arrival
//        less a stage. 256x128 +1 %, 64x32 -1 %; dropped.
//   v15  two consumers take turns (named barriers; a product starts when 3/4, 1/2 or 1/4 of the
//        other's is done). Predicted -6 %: those that start together also promote together.
//        4096x4096x7168 197 -> 203, 206, 207. One of them started half a product late: 203. Dropped.
//   v16  `full` of the next stage tested before the promotion; descriptors by one addition. Predicted
//        -5 %: by stall samples that wait takes 83 of the 1165 cycles of a K-block of 256x128.
//        4096x4096x7168 197.1 -> 195.2, 8192x2112x7168 at 192x128 212 -> 209. Kept. All that the next
//        product needs before the promotion: 828 -> 834, its moves stand in the way; dropped. The
//        loop unrolled: twice -1 %, four times -2 % in a cluster, else nothing; twice is kUnroll.
//   v17  192x128, three consumers with 128 sums in 160 registers. Predicted -6 %: two keep the tensor
//        core busy for 88 % of the cycles. 8192x7168x16384 1639 -> 1522 (1503 without promotion),
//        8192x2112x7168 235 -> 209. Kept.
//   v18  in a small tile's cluster of 2 or 4, A loaded once: 64x7168x16384 33.0 -> 33.5, overlapped
//        32.5 -> 31.4; the weights beyond the ring asked into L2 before griddepcontrol.wait: nothing;
//        a shared operand loaded whole by one CTA instead of in halves: 828 -> 834. Dropped.
//   v19  ranks that split K meet in their first exchange, not before their first load. Predicted
//        -0.5. 64x2112x7168 7.98 -> 7.91, 64x7168x16384 34.3 -> 33.8. Kept.
// clang-format on
#ifndef OCTILE_EMITTED
#include "gemm/default_prologue.cuh"
#endif

namespace wgmma {
OCTILE_INSTANTIATE_MMA(OCTILE_WGMMA_N)
}

namespace gemm {

constexpr int kWgmmaK = 32;
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
constexpr int kBOffset = cfg::kStages * kAStageBytes;
constexpr int kDOffset = kBOffset + cfg::kStages * kBStageBytes;
constexpr int kScaleOffset = kDOffset + kDBytes;
constexpr int kScaleBOffset = kScaleOffset + cfg::kStages * kScaleStageBytes;
constexpr int kBarrierOffset = kScaleBOffset + cfg::kStages * 16;
constexpr int kSmemBytes = kBarrierOffset + (2 * cfg::kStages + (cfg::kSplits > 1 ? 2 : 0)) * 8;
// Columns sure to share a 128-wide scale block, whatever the tile's first column, and how many
// blocks a tile can touch.
constexpr int kScaleSegment = gcd(cfg::kBlockN, 128);
constexpr int kScaleRows = ceil_div(cfg::kBlockN - kScaleSegment, 128) + 1;

static_assert(cfg::kBlockK == 128, "one K-block is one scale block");
static_assert(kStrips * 64 * cfg::kConsumerWarpgroups == (cfg::kBlockM < 64 ? 64 : cfg::kBlockM),
              "strips of 64 rows");
static_assert(cfg::kSplits == 1 || (kShareSize == 1 && !cfg::kTmaStore),
              "a cluster splits or shares");
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
  __device__ __forceinline__ u32 scales_b(int stage) const {
    return base + kScaleBOffset + stage * 16;
  }
  __device__ __forceinline__ u32 full(int stage) const { return base + kBarrierOffset + stage * 8; }
  __device__ __forceinline__ u32 empty(int stage) const {
    return base + kBarrierOffset + (cfg::kStages + stage) * 8;
  }
  // Split K: partial sums of all ranks are here; this rank's are no longer needed anywhere.
  __device__ __forceinline__ u32 gathered() const {
    return base + kBarrierOffset + 2 * cfg::kStages * 8;
  }
  __device__ __forceinline__ u32 taken() const { return gathered() + 8; }
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

// What the producers read.
struct Source {
  const TensorMap* a_map;
  const TensorMap* b_map;
  const float* scale_a;
  const float* scale_b;
  i64 scale_a_ld, scale_b_ld;
};

// One tile of it.
struct TileSource {
  int m0, n0;
  int scale_bytes;       // of A's scales that the layout holds for the tile, padding included
  const float* scale_a;  // of the tile's first row

  __device__ __forceinline__ TileSource(const Source& from, const Extents& e,
                                        const Scheduler& tiles, int rank) {
    tile_origin(tiles, rank, m0, n0);
    scale_bytes = max(0, min(cfg::kBlockM, ceil_div(e.m, 4) * 4 - m0)) * 4;
    scale_a = from.scale_a + m0;
  }
};

// The addresses of one stage, advanced with it: with small tiles the producer's instructions, not
// the copies, set the rate.
struct StageCursor {
  u32 full, a, b, scales;
  u32 parity = 1;

  __device__ __forceinline__ explicit StageCursor(const SharedMemory& smem)
      : full(smem.full(0)), a(smem.a(0)), b(smem.b(0)), scales(smem.scales(0)) {}
  __device__ __forceinline__ u32 empty() const { return full + cfg::kStages * 8; }
  __device__ __forceinline__ void advance(const SharedMemory& smem) {
    full += 8;
    a += kAStageBytes;
    b += kBStageBytes;
    scales += kScaleStageBytes;
    if (full == smem.empty(0)) {
      const u32 next_parity = parity ^ 1;
      *this = StageCursor(smem);
      parity = next_parity;
    }
  }
};

// The producer's arrival: after it the stage waits for bytes (and B's scales) only.
__device__ __forceinline__ void announce(const StageCursor& at, const TileSource& tile) {
  mbarrier::arrive_expect_tx(at.full, kAStageBytes + kBStageBytes + tile.scale_bytes);
}

// The weight's half of a stage. A shared operand is loaded as one slice per CTA of the cluster,
// each multicast to all.
__device__ __forceinline__ void load_b(const StageCursor& at, const Source& from,
                                       const TileSource& tile, int rank, int k) {
  constexpr u16 kEveryone = (1u << kShareSize) - 1;
  if constexpr (cfg::kClusterM > 1) {
    constexpr int kSlice = cfg::kBlockN / cfg::kClusterM;
    const int first = rank * kSlice;
    tma::load_2d_multicast(at.b + first * 128, from.b_map, k, tile.n0 + first, at.full, kEveryone);
  } else {
    tma::load_2d(at.b, from.b_map, k, tile.n0, at.full);
  }
}

// The activations' half and their scales.
__device__ __forceinline__ void load_a(const StageCursor& at, const Source& from,
                                       const TileSource& tile, const float* scales, int rank,
                                       int k) {
  constexpr u16 kEveryone = (1u << kShareSize) - 1;
  if constexpr (cfg::kClusterN > 1) {
    constexpr int kSlice = cfg::kBlockM / cfg::kClusterN;
    const int first = rank * kSlice;
    tma::load_2d_multicast(at.a + first * 128, from.a_map, k, tile.m0 + first, at.full, kEveryone);
    const int bytes = min(kSlice * 4, tile.scale_bytes - first * 4);
    if (bytes > 0) {
      tma::load_bulk_multicast(at.scales + first * 4, scales + first, bytes, at.full, kEveryone);
    }
  } else {
    tma::load_2d(at.a, from.a_map, k, tile.m0, at.full);
    if (tile.scale_bytes > 0) tma::load_bulk(at.scales, scales, tile.scale_bytes, at.full);
  }
}

// One thread: the ring's loads.
__device__ __forceinline__ void produce(const SharedMemory& smem, const Source& from,
                                        const Extents& e, int rank, int early_stages) {
  const KRange range = k_range(e.k_blocks(), rank);
  Scheduler tiles = make_scheduler(e);
  // Weights do not depend on the kernel before this one in the stream, which may still run: their
  // part of the first stages may be asked for at once, everything else waits.
  int early = min(early_stages, range.last - range.first);
  if (tiles.valid()) {
    const TileSource tile(from, e, tiles, rank);
    StageCursor at(smem);
#pragma unroll 1
    for (int i = 0; i < early; ++i) {
      announce(at, tile);
      load_b(at, from, tile, rank, (range.first + i) * 128);
      at.advance(smem);
    }
  }
  wait_for_previous_kernel();
  StageCursor at(smem);
  for (; tiles.valid(); tiles.advance()) {
    const TileSource tile(from, e, tiles, rank);
    const float* scales = tile.scale_a + range.first * from.scale_a_ld;
#pragma unroll 1
    for (int k = range.first * 128; k < range.last * 128; k += 128) {
      const bool announced = early > 0;
      if (!announced) {
        mbarrier::wait(at.empty(), at.parity);
        announce(at, tile);
      }
      load_a(at, from, tile, scales, rank, k);
      if (!announced) load_b(at, from, tile, rank, k);
      --early;
      scales += from.scale_a_ld;
      at.advance(smem);
    }
  }
}

// B's decode scales, one or a few scalars a K-block: a lane holds those of one block in 32.
struct BlockScaleCache {
  float value[kScaleRows];

  __device__ __forceinline__ void load(const Source& from, const Extents& e, int n0, int block,
                                       int end, int lane) {
    const int last = (e.n - 1) / 128;
#pragma unroll
    for (int r = 0; r < kScaleRows; ++r) {
      // Columns beyond n are zeros times any scale; they only must not read beyond the array.
      const float* row = from.scale_b + min(n0 / 128 + r, last) * from.scale_b_ld;
      value[r] = block + lane < end ? __ldg(row + block + lane) : 0.0f;
    }
  }
};

// One warp: B's scales into the stages. Beside the copies' thread and not in it, which must issue
// at the rate the ring drains.
__device__ __forceinline__ void publish_scales(const SharedMemory& smem, const Source& from,
                                               const Extents& e, int rank) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const KRange range = k_range(e.k_blocks(), rank);
  Ring ring;
  Scheduler tiles = make_scheduler(e);
  int m0;
  int n0 = 0;
  if (tiles.valid()) tile_origin(tiles, rank, m0, n0);
  BlockScaleCache cache, next;
  next.load(from, e, n0, range.first, range.last, lane);
  while (tiles.valid()) {
    tiles.advance();
    int next_n0 = 0;  // after the last tile, of a load nobody uses
    if (tiles.valid()) tile_origin(tiles, rank, m0, next_n0);
#pragma unroll 1
    for (int block = range.first; block < range.last; ++block) {
      const int index = (block - range.first) % 32;
      if (index == 0) {
        // The following 32 are asked for now, so that no stage waits for their latency.
        cache = next;
        const bool same_tile = block + 32 < range.last;
        next.load(from, e, same_tile ? n0 : next_n0, same_tile ? block + 32 : range.first,
                  range.last, lane);
      }
      mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
#pragma unroll
      for (int r = 0; r < kScaleRows; ++r) {
        if (lane == index) store_shared_f32(smem.scales_b(ring.stage) + r * 4, cache.value[r]);
      }
      if (lane == index) mbarrier::arrive(smem.full(ring.stage));
      ring.advance();
    }
    n0 = next_n0;
  }
}

// B's decode scales of one K-block, one per scale row the tile touches.
struct BlockScales {
  float value[kScaleRows];
  __device__ __forceinline__ explicit BlockScales(u32 address) {
#pragma unroll
    for (int r = 0; r < kScaleRows; ++r) value[r] = load_shared_f32(address + r * 4);
  }
};

// Which of the products with B's scale rows column group j (8 columns) takes; `offset` is the
// tile's first column in its scale block.
__device__ __forceinline__ float pick(const float (&products)[kScaleRows], int offset, int j) {
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

// Decode scales of one product's two rows a thread holds, times those of B.
struct ProductScales {
  float upper[kScaleRows];
  float lower[kScaleRows];
};

// acc = fma(partial, sa * sb, acc): the CUDA cores' half of the product.
__device__ __forceinline__ void promote(float (&acc)[kAccumulators],
                                        const float (&partial)[kAccumulators],
                                        const ProductScales& scales, int offset) {
  // One flat loop: nested by segment, ptxas kept the accumulators of some widths in local memory.
#pragma unroll
  for (int j = 0; j < cfg::kBlockN / 8; ++j) {
    const float u = pick(scales.upper, offset, j);
    const float l = pick(scales.lower, offset, j);
    acc[4 * j + 0] = __fmaf_rn(partial[4 * j + 0], u, acc[4 * j + 0]);
    acc[4 * j + 1] = __fmaf_rn(partial[4 * j + 1], u, acc[4 * j + 1]);
    acc[4 * j + 2] = __fmaf_rn(partial[4 * j + 2], l, acc[4 * j + 2]);
    acc[4 * j + 3] = __fmaf_rn(partial[4 * j + 3], l, acc[4 * j + 3]);
  }
}

// One arrival a warp and CTA of the cluster: __syncwarp puts every lane's reads before it.
__device__ __forceinline__ void release_stage(const SharedMemory& smem, int stage, int lane) {
  __syncwarp();
  if constexpr (kShareSize > 1) {
    if (lane < kShareSize) mbarrier::arrive_cluster(smem.empty(stage), lane);
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
  u32 a_descriptor, b_descriptor;  // of stage 0: its first row of A, the tile of B
  int scale_row;                   // of the two rows of A the thread holds, the upper

  __device__ __forceinline__ explicit Consumer(const SharedMemory& shared)
      : smem(shared),
        index(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0)),
        warp(static_cast<int>(threadIdx.x) / 32 % 4),
        lane(static_cast<int>(threadIdx.x) % 32),
        a_descriptor(wgmma::descriptor(smem.a(0) + index * kRowsPerConsumer * 128)),
        // Through a shuffle, or the compiler works it out anew before every product.
        b_descriptor(__shfl_sync(0xffffffffu, wgmma::descriptor(smem.b(0)), 0)),
        // Rows beyond a short tile are not stored: any scale serves.
        scale_row(min(index * kRowsPerConsumer + warp * 16 + lane / 4, cfg::kBlockM - 9)) {}
};

// The products of a K-block a consumer computes, of 64 rows and kPromote of K each.
constexpr int kParts = 128 / cfg::kPromote;
constexpr int kBlockProducts = kStrips * kParts;
using Mma = wgmma::Mma<cfg::kBlockN, cfg::kAIsE5M2, cfg::kBIsE5M2>;

// Issues product `product` of the K-block in `stage` and commits it.
__device__ __forceinline__ void issue(const Consumer& self, int stage, int product,
                                      float (&partial)[kAccumulators]) {
  const u32 a =
      self.a_descriptor + stage * (kAStageBytes >> 4) + product / kParts * (64 * 128 >> 4);
  const u32 b = self.b_descriptor + stage * (kBStageBytes >> 4);
  const int k = product % kParts * cfg::kPromote >> 4;
  Mma::template product<cfg::kPromote / kWgmmaK>(partial, a + k, b + k);
}

// The scales of one product as they lie in shared memory.
struct StageScales {
  float upper, lower;
  BlockScales b;

  __device__ __forceinline__ StageScales(const Consumer& self, int stage, int product)
      : b(self.smem.scales_b(stage)) {
    const u32 a = self.smem.scales(stage) + (self.scale_row + product / kParts * 64) * 4;
    upper = load_shared_f32(a);
    lower = load_shared_f32(a + 8 * 4);
  }
  __device__ __forceinline__ ProductScales multiplied() const {
    ProductScales result;
#pragma unroll
    for (int r = 0; r < kScaleRows; ++r) {
      result.upper[r] = __fmul_rn(upper, b.value[r]);
      result.lower[r] = __fmul_rn(lower, b.value[r]);
    }
    return result;
  }
};

// K-blocks into acc one product at a time: other warpgroups keep the tensor core busy while this
// one promotes. Whether the next stage is full is asked before the last promotion of a stage, so
// that its answer is there when the next product could start.
__device__ __forceinline__ void multiply_serially(const Consumer& self, Ring& ring, int offset,
                                                  int k_blocks,
                                                  float (&acc)[kStrips][kAccumulators]) {
  float partial[kAccumulators];
  bool ready = false;
#pragma unroll(cfg::kInFlight > 1 ? 1 : cfg::kUnroll)
  for (; k_blocks > 0; --k_blocks) {
    const int stage = ring.stage;
    if (!ready) mbarrier::wait(self.smem.full(stage), ring.phase);
    ring.advance();
#pragma unroll
    for (int product = 0; product < kBlockProducts; ++product) {
      const StageScales read(self, stage, product);
      issue(self, stage, product, partial);
      const ProductScales scales = read.multiplied();
      wgmma::wait<0>();
      wgmma::pin(partial);
      if (product == kBlockProducts - 1) {
        release_stage(self.smem, stage, self.lane);
        ready = mbarrier::test(self.smem.full(ring.stage), ring.phase);
      }
      promote(acc[product / kParts], partial, scales, offset);
    }
  }
}

// kUnroll consecutive K-blocks into acc. kInFlight products are issued before the first of them is
// promoted, each into partial sums of its own, and one more as soon as one is promoted: the tensor
// core works while the CUDA cores promote.
__device__ __forceinline__ void multiply_in_flight(const Consumer& self, Ring& ring, int offset,
                                                   float (&acc)[kStrips][kAccumulators]) {
  constexpr int kProducts = cfg::kUnroll * kBlockProducts;
  constexpr int kInFlight = cfg::kInFlight;
  static_assert(kInFlight <= kProducts, "products to have in flight");
  int stage[cfg::kUnroll];
  float partial[kInFlight][kAccumulators];
  ProductScales scales[kInFlight];
#pragma unroll
  for (int step = 0; step < kProducts + kInFlight; ++step) {
    const int i = step % kInFlight;
    const int done = step - kInFlight;
    if (done >= 0) {
      wgmma::wait_for(min(kInFlight, kProducts - done) - 1);
      wgmma::pin(partial[i]);
      if ((done + 1) % kBlockProducts == 0) {
        release_stage(self.smem, stage[done / kBlockProducts], self.lane);
      }
      promote(acc[done / kParts % kStrips], partial[i], scales[i], offset);
    }
    if (step < kProducts) {
      const int product = step % kBlockProducts;
      int& at = stage[step / kBlockProducts];
      if (product == 0) {
        at = ring.stage;
        mbarrier::wait(self.smem.full(at), ring.phase);
        ring.advance();
      }
      // Read before the stage can be handed back.
      const StageScales read(self, at, product);
      issue(self, at, product, partial[i]);
      scales[i] = read.multiplied();
    }
  }
}

// A tile's K-blocks into acc. `offset`: of the tile's first column in its scale block.
__device__ __forceinline__ void accumulate(const Consumer& self, Ring& ring, int offset,
                                           int k_blocks, float (&acc)[kStrips][kAccumulators]) {
  if constexpr (cfg::kInFlight > 1) {
#pragma unroll 1
    for (; k_blocks >= cfg::kUnroll; k_blocks -= cfg::kUnroll) {
      multiply_in_flight(self, ring, offset, acc);
    }
  }
  multiply_serially(self, ring, offset, k_blocks, acc);
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
      stage_for_tma<cfg::kBlockN, kStripRows>(acc[strip], self.smem.d(self.index * kStrips + strip),
                                              self.warp);
    }
    tma::fence_async_shared();
    named_barrier(1 + self.index, 128);
    if (issuer) {
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        if (row + strip * 64 < e.m) {
          store_boxes<cfg::kBlockN, kStripRows>(d_map, self.smem.d(self.index * kStrips + strip),
                                                row + strip * 64, n0);
        }
      }
      tma::commit_stores();
    }
  } else {
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      store_direct<cfg::kBlockN>(acc[strip], d, ldd, row + strip * 64 + self.warp * 16, n0,
                                 min(e.m, m0 + cfg::kBlockM), e.n);
    }
  }
}

// Where of the gathering area the sums of `from` for column group `group` of the share lie: 16
// bytes a thread, threads contiguous.
__device__ __forceinline__ u32 gather_offset(int from, int group, int strip) {
  return static_cast<u32>(((from * kShareGroups + group) * kStrips + strip) * kConsumerThreads +
                          static_cast<int>(threadIdx.x)) *
         16;
}

// Each rank's sums of the other ranks' shares into their shared memory. Copies complete on the
// receiver's barrier, so nothing is fenced and no rank reads another's memory.
__device__ __forceinline__ void exchange(const Consumer& self, int rank, bool first_tile, u32 phase,
                                         const float (&acc)[kStrips][kAccumulators]) {
  if (threadIdx.x == 0) {
    const int groups = kGroups * (rank + 1) / cfg::kSplits - kGroups * rank / cfg::kSplits;
    mbarrier::arrive_expect_tx(self.smem.gathered(),
                               groups * cfg::kSplits * kStrips * kConsumerThreads * 16);
  }
  if (first_tile) {
    cluster_wait();
  } else {
    // This rank has read its share of the tile before; so have, after the wait, all others. (Told
    // here and not at once, because a peer that has no tile left may have ended.)
    __syncwarp();
    if (self.lane < cfg::kSplits) mbarrier::arrive_cluster(self.smem.taken(), self.lane);
    mbarrier::wait(self.smem.taken(), phase ^ 1);
  }
  // One flat loop over the column groups, so that every accumulator's index is a constant.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int owner = ((group + 1) * cfg::kSplits - 1) / kGroups;
    const int first = kGroups * owner / cfg::kSplits;
    const u32 area = cluster_address(self.smem.d(0), owner);
    const u32 barrier = cluster_address(self.smem.gathered(), owner);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      store_async_16(area + gather_offset(rank, group - first, strip), acc[strip][4 * group],
                     acc[strip][4 * group + 1], acc[strip][4 * group + 2],
                     acc[strip][4 * group + 3], barrier);
    }
  }
  mbarrier::wait(self.smem.gathered(), phase);
}

// Adds up this rank's share, in the order of the ranks (which is K order), and stores it.
__device__ __forceinline__ void store_share(const Consumer& self, int rank, u16* d, i64 ldd,
                                            const Extents& e, int m0, int n0) {
  const int first = kGroups * rank / cfg::kSplits;
  const int groups = kGroups * (rank + 1) / cfg::kSplits - first;
  const int end = min(e.m, m0 + cfg::kBlockM);
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    const int row =
        m0 + self.index * kRowsPerConsumer + strip * 64 + self.warp * 16 + self.lane / 4;
#pragma unroll
    for (int group = 0; group < kShareGroups; ++group) {
      const int column = n0 + (first + group) * 8;
      if (group >= groups || column >= e.n) break;  // n is a multiple of 8
      Floats4 sum = load_shared_16(self.smem.d(0) + gather_offset(0, group, strip));
#pragma unroll
      for (int from = 1; from < cfg::kSplits; ++from) {
        const Floats4 more = load_shared_16(self.smem.d(0) + gather_offset(from, group, strip));
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.value[i] = __fadd_rn(sum.value[i], more.value[i]);
      }
      u16* p = d + row * ldd + column + 2 * (self.lane % 4);
      if (row < end) *reinterpret_cast<u32*>(p) = pack_bf16x2(sum.value[0], sum.value[1]);
      if (row + 8 < end) {
        *reinterpret_cast<u32*>(p + 8 * ldd) = pack_bf16x2(sum.value[2], sum.value[3]);
      }
    }
  }
}

__device__ __forceinline__ void consume(const SharedMemory& smem, const TensorMap* d_map, u16* d,
                                        i64 ldd, const Extents& e, int rank) {
  const int thread = static_cast<int>(threadIdx.x);
  const Consumer self(smem);
  const KRange range = k_range(e.k_blocks(), rank);
  Ring ring;
  bool first_tile = true;
  u32 phase = 0;
  for (Scheduler tiles = make_scheduler(e); tiles.valid(); tiles.advance()) {
    int m0, n0;
    tile_origin(tiles, rank, m0, n0);
    float acc[kStrips][kAccumulators] = {};
    accumulate(self, ring, n0 % 128, range.last - range.first, acc);
    if constexpr (cfg::kSplits > 1) {
      exchange(self, rank, first_tile, phase, acc);
      first_tile = false;
      store_share(self, rank, d, ldd, e, m0, n0);
      phase ^= 1;
    } else {
      store_tile(self, d_map, d, ldd, e, m0, n0, acc);
    }
  }
  // Shared memory must outlive the copy engine's reads of it.
  if (cfg::kTmaStore && thread % 128 == 0) tma::wait_stores_read<0>();
}

__device__ __forceinline__ void init_barriers(const SharedMemory& smem) {
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < cfg::kStages; ++stage) {
      mbarrier::init(smem.full(stage), 2);
      mbarrier::init(smem.empty(stage), 4 * cfg::kConsumerWarpgroups * kShareSize);
    }
    if constexpr (cfg::kSplits > 1) {
      mbarrier::init(smem.gathered(), 1);
      mbarrier::init(smem.taken(), 4 * cfg::kConsumerWarpgroups * cfg::kSplits);
    }
    mbarrier::fence_init();
  }
  if constexpr (kShareSize > 1) {
    cluster_sync();
  } else {
    // Ranks that split K meet in the first exchange: until then no one needs another's barriers.
    if constexpr (cfg::kSplits > 1) cluster_arrive();
    __syncthreads();
  }
}

// Before a CTA ends: its shared memory must outlive its peers' multicasts and arrivals. Ranks that
// split one tile and no more owe each other nothing after it: each has waited for all that it gets.
__device__ __forceinline__ void leave_cluster(const Extents& e) {
  if constexpr (kShareSize > 1) {
    cluster_sync();
  } else if constexpr (cfg::kSplits > 1) {
    Scheduler tiles = make_scheduler(e);
    tiles.advance();
    if (!tiles.valid()) return;
    if (threadIdx.x >= kConsumerThreads) cluster_wait();
    cluster_sync();
  }
}

}  // namespace gemm

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kCtasPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ TensorMap a_map,
                       const __grid_constant__ TensorMap b_map,
                       const __grid_constant__ TensorMap d_map, const float* scale_a,
                       const float* scale_b, void* d, i64 scale_a_ld, i64 scale_b_ld, i64 ldd,
                       int m, int n, int k, int early_stages) {
  extern __shared__ __align__(1024) u8 dynamic_smem[];
  const gemm::SharedMemory smem{shared_address(dynamic_smem)};
  const gemm::Extents extents{m, n, k};
  const int rank = gemm::kClusterSize > 1 ? static_cast<int>(cluster_rank()) : 0;
  gemm::init_barriers(smem);
  let_next_kernel_start();

  if (threadIdx.x >= cfg::kConsumerWarpgroups * 128) {
    release_registers<cfg::kProducerRegisters>();
    const gemm::Source from{&a_map, &b_map, scale_a, scale_b, scale_a_ld, scale_b_ld};
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == cfg::kConsumerWarpgroups * 4) {
      if (elect_one()) {
        tma::prefetch_map(&a_map);
        tma::prefetch_map(&b_map);
        gemm::produce(smem, from, extents, rank, early_stages);
      }
    } else if (warp == cfg::kConsumerWarpgroups * 4 + 1) {
      gemm::publish_scales(smem, from, extents, rank);
    }
    __syncwarp();
  } else {
    acquire_registers<cfg::kConsumerRegisters>();
    gemm::consume(smem, &d_map, static_cast<u16*>(d), ldd, extents, rank);
  }
  gemm::leave_cluster(extents);
}
