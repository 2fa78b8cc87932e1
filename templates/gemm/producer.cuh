// The producer warpgroup. One thread feeds the ring with A, B and the scales that TMA copies. One
// warp writes the other scales. One thread prefetches weights into L2 before these two may begin.
// Walk and Scale are the kernel's policies.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/copies_tma.cuh"
#include "gemm/tile.cuh"
#endif

namespace gemm {

// The tensors that the producers read.
struct Source {
  const TensorMap* a_map;
  const TensorMap* b_map;
  const float* scale_a;
  const float* scale_b;
  i64 scale_a_ld, scale_b_ld;
};

// The parts of them that a tile reads.
struct TileSource {
  Tile tile;
  int rows;              // rows of A
  int scaled_rows_of_a;  // rows of A whose scales are copied
  int row_of_b;
  int scaled_rows_of_b;
  bool is_tail;

  // Rows of A that TMA loads. Without sharing, the host limits A's box to m rows. With sharing, the
  // CTAs load as many whole slices as hold the rows.
  __device__ __forceinline__ int loaded_rows() const {
    constexpr int kSlice = cfg::kBlockM / cfg::kClusterN;
    return cfg::kClusterN > 1 ? ceil_div(rows, kSlice) * kSlice : rows;
  }
};

template <typename Walk, typename Scale>
__device__ __forceinline__ TileSource source_of(const typename Walk::Position& position,
                                                const Extents& e, int rank) {
  TileSource source;
  Walk::origin(position, e, rank, source.tile);
  source.rows = Walk::rows(e);
  source.scaled_rows_of_a = Walk::scaled_rows(e, source.tile);
  source.row_of_b = Walk::row_of_b(e, source.tile);
  source.is_tail = position.is_tail();
  // B has no scales beyond its last row. n is a multiple of 8.
  const int columns = kHasTail && source.is_tail ? cfg::kTailN : cfg::kBlockN;
  source.scaled_rows_of_b = Scale::kCopiedPerRowOfB > 0 ? min(columns, e.n - source.tile.n0) : 0;
  return source;
}

// The addresses of one stage, advanced from stage to stage: with small tiles the producer's
// instructions, not the copies, set the rate.
struct StageCursor {
  u32 full, a, b, scales_a, scales_b;
  u32 parity = 1;

  __device__ __forceinline__ explicit StageCursor(const SharedMemory& smem)
      : full(smem.full(0)),
        a(smem.a(0)),
        b(smem.b(0)),
        scales_a(smem.scales_a(0)),
        scales_b(smem.scales_b(0)) {}
  __device__ __forceinline__ u32 empty() const { return full + cfg::kStages * 8; }
  __device__ __forceinline__ void advance(const SharedMemory& smem) {
    full += 8;
    a += cfg::kAStageBytes;
    b += cfg::kBStageBytes;
    scales_a += cfg::kScaleAStageBytes;
    scales_b += cfg::kScaleBStageBytes;
    if (full == smem.empty(0)) {
      const u32 next_parity = parity ^ 1;
      *this = StageCursor(smem);
      parity = next_parity;
    }
  }
};

// Says what a stage's copies will bring.
template <typename Scale>
__device__ __forceinline__ void announce(const StageCursor& at, const TileSource& source) {
  const int columns = kHasTail && source.is_tail ? cfg::kTailN : cfg::kBlockN;
  copies::announce(at.full, columns * 128 + source.scaled_rows_of_b * Scale::kCopiedPerRowOfB +
                                source.loaded_rows() * 128 +
                                source.scaled_rows_of_a * Scale::kCopiedPerRowOfA);
}

// Loads a stage's part of B and its scales, unless the scale warp brings them. If a cluster shares
// B, each CTA loads a slice and multicasts it.
template <typename Walk, typename Scale>
__device__ __forceinline__ void load_b(const StageCursor& at, const Source& from,
                                       const TileSource& source, const float* scales, int rank,
                                       int k) {
  const int n0 = source.row_of_b;
  if constexpr (cfg::kClusterM > 1) {
    constexpr int kSlice = cfg::kBlockN / cfg::kClusterM;
    const int first = rank * kSlice;
    tma::load_2d_multicast(at.b + first * 128, from.b_map, k, n0 + first, at.full, kWholeCluster);
    const int rows = min(kSlice, source.scaled_rows_of_b - first);
    if (rows > 0) Scale::load_b(scales, at.scales_b, first, rows, at.full);
  } else {
    Walk::load_b(at.b, from.b_map, source.tile, k, n0, at.full);
    if (kHasTail && !source.is_tail) {  // a box is as wide as a tail tile
      Walk::load_b(at.b + cfg::kTailN * 128, from.b_map, source.tile, k, n0 + cfg::kTailN, at.full);
    }
    Scale::load_b(scales, at.scales_b, 0, source.scaled_rows_of_b, at.full);
  }
}

// Loads a stage's part of A and its scales in the same way.
template <typename Walk, typename Scale>
__device__ __forceinline__ void load_a(const StageCursor& at, const Source& from,
                                       const TileSource& source, const float* scales, int rank,
                                       int k) {
  const int m0 = source.tile.m0;
  if constexpr (cfg::kClusterN > 1) {
    constexpr int kSlice = cfg::kBlockM / cfg::kClusterN;
    const int first = rank * kSlice;
    const int rows = min(kSlice, source.rows - first);
    if (rows > 0) {
      tma::load_2d_multicast(at.a + first * 128, from.a_map, k, m0 + first, at.full, kWholeCluster);
      Scale::load_a(scales, at.scales_a, first, rows, at.full);
    }
  } else {
    Walk::load_a(at.a, from.a_map, source.tile, k, at.full);
    // A cluster's tile behind the end of a group has none.
    if (!Walk::kGrouped || source.scaled_rows_of_a > 0) {
      Scale::load_a(scales, at.scales_a, 0, source.scaled_rows_of_a, at.full);
    }
  }
}

// Whether the K-block at k is the last whose scales lie in one run of words.
template <typename Format>
__device__ __forceinline__ bool ends_word(int k) {
  return k / 128 % Format::kBlocksOfWord == Format::kBlocksOfWord - 1;
}

// The threads that copy: the ring's copies. Weights do not depend on the preceding kernel of the
// stream, which may still run. So a first pass loads those of the first `early_stages` stages of
// the first tile. Everything else waits for that kernel. Without kPdlEarly there is no such pass.
template <typename Walk, typename Scale, typename Output>
__device__ __forceinline__ void produce(const SharedMemory& smem, const Source& from,
                                        const Destination& to, const Extents& e, int rank,
                                        int early_stages) {
  KRange range = Walk::k_range(e, rank);
  int begin = range.first * 128;
  // Without split K this is e.k itself, which lies in constant memory and takes no register.
  int end = cfg::kSplits > 1 ? range.last * 128 : e.k;
  // K up to which the tile's weights are in the ring; -1: the next pass loads only weights.
  int requested = cfg::kPdlEarly && early_stages > 0 ? -1 : 0;
  StageCursor at(smem);
#pragma unroll 1
  for (auto position = Walk::first(e, smem); position.valid();) {
    const TileSource source = source_of<Walk, Scale>(position, e, rank);
    if constexpr (Walk::kOwnRanges) {
      range = Walk::k_range_of(position);
      begin = range.first * 128;
      end = range.last * 128;
    }
    constexpr int kOfWord = Scale::FormatA::kBlocksOfWord;
    const float* scale_a =
        Walk::scales_of_a(from, e, source.tile, ceil_div(ceil_div(e.k, 128), kOfWord));
    const bool weights_only = cfg::kPdlEarly && requested < 0;
    if (!weights_only) {
      wait_for_previous_kernel();  // returns at once for every later tile
      if constexpr (cfg::kPdlEarly) mbarrier::arrive(smem.pdl_ready());
    }
    const float* scales = scale_a + range.first / Scale::FormatA::kBlocksOfWord * from.scale_a_ld;
    const float* scales_b = nullptr;
    if constexpr (Scale::kCopiedPerRowOfB > 0) {
      scales_b = from.scale_b + source.tile.n0 +
                 range.first / Scale::FormatB::kBlocksOfWord * from.scale_b_ld;
      if constexpr (Walk::kBatched) scales_b += Walk::scales_before(from, source.tile);
    }
    const int pass_end = weights_only ? min(end, begin + early_stages * 128) : end;
#pragma unroll 1
    for (int k = begin; k < pass_end; k += 128) {
      if (k >= requested) {
        mbarrier::wait(at.empty(), at.parity);
        announce<Scale>(at, source);
        load_b<Walk, Scale>(at, from, source, scales_b, rank, k);
      }
      if (!weights_only) {
        load_a<Walk, Scale>(at, from, source, scales, rank, k);
        copies::close(at.full);
        if (ends_word<typename Scale::FormatA>(k)) scales += from.scale_a_ld;
        if constexpr (Output::kPrefetchesD) {
          if constexpr (Walk::kGrouped) {
            // In the opposite order, so that no register holds where the group begins.
            Output::prefetch(to, Walk::in_d(e, source.tile), Walk::limits_of(e, source.tile),
                             (end - k) / 128 - 1);
          } else if constexpr (Walk::kBatched) {
            Output::prefetch(Walk::destination_of(to, from, source.tile), source.tile,
                             Walk::limits(e), (k - begin) / 128);
          } else {
            Output::prefetch(to, source.tile, Walk::limits(e), (k - begin) / 128);
          }
        }
      }
      if constexpr (Scale::kCopiedPerRowOfB > 0) {
        if (ends_word<typename Scale::FormatB>(k)) scales_b += from.scale_b_ld;
      }
      at.advance(smem);
    }
    if (weights_only) {
      at = StageCursor(smem);
      requested = pass_end;
    } else {
      requested = 0;
      position.advance();
    }
  }
}

// One thread: prefetches the weights of the first `stages` stages of the first tile into L2, until
// the copy thread may begin, whose loads it would hold up from then on. Later writes by preceding
// kernels reach L2 too, so they are seen.
template <typename Walk, typename Scale>
__device__ __forceinline__ void prefetch_weights(const SharedMemory& smem, const Source& from,
                                                 const Extents& e, int rank, int stages) {
  const auto position = Walk::first(e, smem);
  if (!position.valid()) return;
  const TileSource source = source_of<Walk, Scale>(position, e, rank);
  const KRange range = Walk::k_range(e, rank);
  const int last = min(range.last, range.first + stages);
#pragma unroll 1
  for (int block = range.first; block < last && mbarrier::test(smem.pdl_ready(), 0) == 0; ++block) {
    tma::prefetch_2d(from.b_map, block * 128, source.row_of_b);
  }
}

// One warp: writes the scales that TMA does not copy into the stages. It is not the copy thread,
// which must issue at the rate the ring drains. A lane holds the scales of one of 32 K-blocks. The
// warp may start as early as the weights. It loads the first scales of a tile as many stages ahead
// of the WGMMAs as the tile's copies, and the following ones 32 K-blocks ahead.
template <typename Walk, typename Scale>
__device__ __forceinline__ void publish_scales(const SharedMemory& smem, const Source& from,
                                               const Extents& e, int rank, int early_stages) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const KRange range = Walk::k_range(e, rank);
  Ring ring;
  if (!cfg::kPdlEarly || early_stages == 0) wait_for_previous_kernel();
#pragma unroll 1
  for (auto position = Walk::first(e, smem); position.valid(); position.advance()) {
    Tile tile;
    Walk::origin(position, e, rank, tile);
    const Source& source = Walk::source_of_b(from, e, tile);
    typename Scale::LaneScales current, next;
    next.load(source, e, tile, range.first, range.last, lane);
    int index = 32;  // lane that holds the next K-block's scales
#pragma unroll 1
    for (int block = range.first; block < range.last; ++block, ++index) {
      if (index == 32) {
        current = next;
        next.load(source, e, tile, block + 32, range.last, lane);
        index = 0;
      }
      mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
      if (lane == index) {
        current.store(smem.scales_b(ring.stage), tile);
        mbarrier::arrive(smem.full(ring.stage));
      }
      ring.advance();
    }
  }
}

// The same for scales of which a K-block has one for each row: a lane holds those of rows lane,
// lane + 32, .. of Scale::kAhead K-blocks, and all lanes write a stage. If kAhead is 1, the warp
// loads while it waits for the stage.
template <typename Walk, typename Scale>
__device__ __forceinline__ void publish_rows(const SharedMemory& smem, const Source& from,
                                             const Extents& e, int rank) {
  using Rows = typename Scale::LaneRows;
  constexpr int kAhead = Scale::kAhead;
  const int lane = static_cast<int>(threadIdx.x % 32);
  Scale::clear_stages(smem, lane);
  KRange range = Walk::k_range(e, rank);
  Ring ring;
  wait_for_previous_kernel();
#pragma unroll 1
  for (auto position = Walk::first(e, smem); position.valid(); position.advance()) {
    Tile tile;
    Walk::origin(position, e, rank, tile);
    if constexpr (Walk::kOwnRanges) range = Walk::k_range_of(position);
    if (range.first >= range.last) continue;
    const auto place = Rows::template place<Walk>(from, e, tile);
    Rows rows[kAhead];
    if constexpr (kAhead > 1) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        rows[i].load(place, min(range.first + i, range.last - 1), lane);
    }
#pragma unroll 1
    for (int first = range.first; first < range.last; first += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int block = first + i;
        if (block >= range.last) break;
        if constexpr (kAhead == 1) rows[i].load(place, block, lane);
        mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
        rows[i].store(smem.scales_a(ring.stage), smem.scales_b(ring.stage), block, lane);
        __syncwarp();
        if (lane == 0) mbarrier::arrive(smem.full(ring.stage));
        ring.advance();
        if constexpr (kAhead > 1) rows[i].load(place, min(block + kAhead, range.last - 1), lane);
      }
    }
  }
}

}  // namespace gemm
