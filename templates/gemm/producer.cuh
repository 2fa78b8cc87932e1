// The producer warpgroup: one thread feeds the ring with A, B and A's scales by TMA, one warp
// writes B's scales beside them, and before either may begin one thread asks for weights into L2.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm {

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
  int rows;  // of A, as their scales lie there
  bool narrow;
  const float* scale_a;  // of the tile's first row

  __device__ __forceinline__ TileSource(const Source& from, const Extents& e,
                                        const Scheduler& tiles, int rank) {
    tile_origin(tiles, e, rank, m0, n0);
    rows = min(cfg::kBlockM, padded_rows(e));
    narrow = tiles.is_narrow();
    scale_a = from.scale_a + m0;
  }
  // That are loaded: the host makes A's box no larger than m, or there are as many slices as hold
  // these rows.
  __device__ __forceinline__ int loaded_rows() const {
    constexpr int kSlice = cfg::kBlockM / cfg::kClusterN;
    return cfg::kClusterN > 1 ? ceil_div(rows, kSlice) * kSlice : rows;
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
  const int b_bytes = kHasTail && tile.narrow ? cfg::kTailN * 128 : kBStageBytes;
  mbarrier::arrive_expect_tx(at.full, b_bytes + tile.loaded_rows() * 128 + tile.rows * 4);
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
    if (kHasTail && !tile.narrow) {  // boxes are as wide as a narrow tile
      tma::load_2d(at.b + cfg::kTailN * 128, from.b_map, k, tile.n0 + cfg::kTailN, at.full);
    }
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
    const int rows = min(kSlice, tile.rows - first);
    if (rows > 0) {
      tma::load_2d_multicast(at.a + first * 128, from.a_map, k, tile.m0 + first, at.full,
                             kEveryone);
      tma::load_bulk_multicast(at.scales + first * 4, scales + first, rows * 4, at.full, kEveryone);
    }
  } else {
    tma::load_2d(at.a, from.a_map, k, tile.m0, at.full);
    tma::load_bulk(at.scales, scales, tile.rows * 4, at.full);
  }
}

// One thread: the ring's loads. Weights do not depend on the kernel before this one in the stream,
// which may still run: those of the first `early_stages` of the first tile are asked for at once,
// by a pass of their own over its K-blocks; all else waits for that kernel. None are asked for so
// where the next kernel does not start early either (launch_gemm.cc), and there is no such pass.
__device__ __forceinline__ void produce(const SharedMemory& smem, const Source& from,
                                        const Extents& e, int rank, int early_stages) {
  const KRange range = k_range(e.k_blocks(), rank);
  const int begin = range.first * 128;
  // e.k itself where nobody shares K: it is in constant memory and takes no register.
  const int end = cfg::kSplits > 1 ? range.last * 128 : e.k;
  // Up to which k the tile's weights were asked for; -1: in this pass, and nothing else.
  int asked = cfg::kPdlEarly && early_stages > 0 ? -1 : 0;
  StageCursor at(smem);
#pragma unroll 1
  for (Scheduler tiles = make_scheduler(e); tiles.valid();) {
    const TileSource tile(from, e, tiles, rank);
    const bool early = cfg::kPdlEarly && asked < 0;
    if (!early) {
      wait_for_previous_kernel();  // of a later tile it returns at once
      if constexpr (cfg::kPdlEarly) mbarrier::arrive(smem.begun());
    }
    const float* scales = tile.scale_a + range.first * from.scale_a_ld;
    const int pass_end = early ? min(end, begin + early_stages * 128) : end;
#pragma unroll 1
    for (int k = begin; k < pass_end; k += 128) {
      if (k >= asked) {
        mbarrier::wait(at.empty(), at.parity);
        announce(at, tile);
        load_b(at, from, tile, rank, k);
      }
      if (!early) {
        load_a(at, from, tile, scales, rank, k);
        scales += from.scale_a_ld;
      }
      at.advance(smem);
    }
    if (early) {
      at = StageCursor(smem);
      asked = pass_end;
    } else {
      asked = 0;
      tiles.advance();
    }
  }
}

// One thread: asks for the weights of the first `stages` of the first tile into L2, until the ring
// itself may be fed: then it would only stand in the way of the loads. Whatever the kernels before
// still write there is what will be loaded.
__device__ __forceinline__ void prefetch_weights(const SharedMemory& smem, const Source& from,
                                                 const Extents& e, int rank, int stages) {
  const Scheduler tiles = make_scheduler(e);
  if (!tiles.valid()) return;
  const TileSource tile(from, e, tiles, rank);
  const KRange range = k_range(e.k_blocks(), rank);
  const int last = min(range.last, range.first + stages);
#pragma unroll 1
  for (int block = range.first; block < last && mbarrier::test(smem.begun(), 0) == 0; ++block) {
    tma::prefetch_2d(from.b_map, block * 128, tile.n0);
  }
}

// B's decode scales, one or a few scalars a K-block: a lane holds those of one block in 32.
struct BlockScaleCache {
  float value[kScaleRows];

  __device__ __forceinline__ void load(const Source& from, const Extents& e, int n0, int block,
                                       int end, int lane) {
    const int first = n0 / 128;
#pragma unroll
    for (int r = 0; r < kScaleRows; ++r) {
      // Columns beyond n are zeros times any scale; they only must not read beyond the array.
      const int row = r == 0 ? first : min(first + r, ceil_div(e.n, 128) - 1);
      value[r] =
          load_f32_if(from.scale_b + row * from.scale_b_ld + block + lane, block + lane < end);
    }
  }
  // `offset`: of the tile's first column in its scale block.
  __device__ __forceinline__ void store(u32 address, int offset) const {
#pragma unroll
    for (int i = 0; i < kScalesB; ++i) {
      const int row = (offset + i * kScaleSegment) / 128;
      float scale = value[0];
#pragma unroll
      for (int r = 1; r < kScaleRows; ++r) scale = row == r ? value[r] : scale;
      store_shared_f32(address + i * 4, scale);
    }
  }
};

// One warp: B's scales into the stages, as early as its codes. Beside the copies' thread and not in
// it, which must issue at the rate the ring drains.
__device__ __forceinline__ void publish_scales(const SharedMemory& smem, const Source& from,
                                               const Extents& e, int rank, int early_stages) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const KRange range = k_range(e.k_blocks(), rank);
  Ring ring;
  if (!cfg::kPdlEarly || early_stages == 0) wait_for_previous_kernel();
#pragma unroll 1
  for (Scheduler tiles = make_scheduler(e); tiles.valid(); tiles.advance()) {
    int m0, n0;
    tile_origin(tiles, e, rank, m0, n0);
    // A tile's first scales are asked for as many stages ahead of the products as its copies, the
    // following ones 32 blocks ahead.
    BlockScaleCache cache, next;
    next.load(from, e, n0, range.first, range.last, lane);
    int index = 32;  // of the block in the cache
#pragma unroll 1
    for (int block = range.first; block < range.last; ++block, ++index) {
      if (index == 32) {
        cache = next;
        next.load(from, e, n0, block + 32, range.last, lane);
        index = 0;
      }
      mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
      if (lane == index) {
        cache.store(smem.scales_b(ring.stage), n0 % 128);
        mbarrier::arrive(smem.full(ring.stage));
      }
      ring.advance();
    }
  }
}

}  // namespace gemm
