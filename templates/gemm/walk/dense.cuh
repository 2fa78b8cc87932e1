// Walk policy: every tile of one matrix, in the order of TileScheduler.
//
// Contract of a walk policy. Any thread of any role may call its functions, and all threads of a
// role walk alike. They touch no barrier and no memory but the kernel's arguments.
//   Position               registers that say where a role is: valid(), advance(), is_tail()
//   first(e, smem)         position of this CTA's first tile
//   origin(position, e, rank, tile)  writes first row and column of the tile there
//   own_row(position, e, rank)  first row of that tile that no earlier tile has; the limit, if none
//   k_range(e, rank)       K-blocks of a tile that this rank of the cluster sums
//   rows(e)                rows of A that a tile loads, a multiple of 4
//   scaled_rows(e, tile)   rows of A whose scales it copies, a multiple of 4
//   scales_of_a(from, e, tile, words)  those of its first row. A group has `words` rows of scales.
//   source_of_b(from, e, tile)  the source whose B and scales of B are the tile's
//   row_of_b(e, tile)      row of B that is the tile's first column
//   load_a(to, map, tile, k, full)  copies the tile's box of A
//   load_b(to, map, tile, k, row, full)  copies the box of B that begins with that row
//   in_d(e, tile)          the tile in the rows of D
//   limits(e)              row and column from which on nothing is stored
// With kGrouped tiles belong to groups, which are in a table in shared memory:
//   write_table(smem, e)   all lanes of one warp: writes it, before the roles part
//   origin(...)            also writes own_row, group, end and last
//   limits_of(e, tile)     in place of limits
//   k_range_of(position)   in place of k_range, if kOwnRanges
//   kShiftsScales          whether the scales of a tile's first row are the stage's m0 % 4th
// If kBatched, tiles belong to the GEMMs of a batch:
//   origin(...)            also writes the GEMM, as `group`
//   scales_before(from, tile)  scales of B before those of the tile's
//   destination_of(to, from, tile)  the MatrixDestination of the tile
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/producer.cuh"
#endif

namespace gemm::walk {

struct Dense {
  enum : bool { kGrouped = false, kBatched = false, kOwnRanges = false, kShiftsScales = false };
  using Position = TileScheduler<cfg::kRasterBand, cfg::kRasterOfColumns, kHasTail>;

  __device__ static __forceinline__ Position first(const Extents& e, const SharedMemory&) {
    const int tiles_m = ceil_div(e.m, cfg::kBlockM * cfg::kClusterM);
    const int first = static_cast<int>(blockIdx.x) / kClusterSize;
    const int step = static_cast<int>(gridDim.x) / kClusterSize;
    if constexpr (kHasTail) {
      return Position(tiles_m, e.order.whole_across, first, step, e.order, tail_across(e));
    } else {
      return Position(tiles_m, ceil_div(e.n, cfg::kBlockN * cfg::kClusterN), first, step, e.order);
    }
  }

  // The last tile of rows begins early enough to end with the matrix, because TMA zero-fills a row
  // outside it much more slowly than it fetches one. It begins on a multiple of 4, where its scales
  // are 16-byte aligned. The rows it shares with the tile before are computed twice, to the same
  // bits. A cluster's tile beyond the last column repeats its neighbour's.
  __device__ static __forceinline__ void origin(const Position& position, const Extents& e,
                                                int rank, Tile& tile) {
    int& m0 = tile.m0;
    int& n0 = tile.n0;
    int tile_m, tile_n;
    if (kHasTail && position.is_tail()) {
      position.tail_coordinates(e.order, tail_across(e), tile_m, tile_n);
      m0 = min(tile_m * cfg::kBlockM, max(padded_rows(e) - cfg::kBlockM, 0));
      n0 = e.order.whole_across * cfg::kBlockN + tile_n * cfg::kTailN;
      return;
    }
    position.coordinates(e.order, tile_m, tile_n);
    const int rank_m = cfg::kClusterM > 1 ? rank : 0;
    const int rank_n = cfg::kClusterN > 1 ? rank : 0;
    const int last = max(padded_rows(e) - cfg::kBlockM, 0);
    m0 = min((tile_m * cfg::kClusterM + rank_m) * cfg::kBlockM, last);
    n0 = (tile_n * cfg::kClusterN + rank_n) * cfg::kBlockN;
    if (cfg::kClusterN > 1 && n0 >= e.n) n0 -= cfg::kBlockN;
  }

  __device__ static __forceinline__ int own_row(const Position& position, const Extents& e,
                                                int rank) {
    int tile_m, tile_n;
    if (kHasTail && position.is_tail()) {
      position.tail_coordinates(e.order, tail_across(e), tile_m, tile_n);
      return tile_m * cfg::kBlockM;
    }
    position.coordinates(e.order, tile_m, tile_n);
    // A cluster's tile beyond the last column repeats its neighbour's.
    if (cfg::kClusterN > 1 && (tile_n * cfg::kClusterN + rank) * cfg::kBlockN >= e.n) return e.m;
    return (tile_m * cfg::kClusterM + (cfg::kClusterM > 1 ? rank : 0)) * cfg::kBlockM;
  }

  __device__ static __forceinline__ KRange k_range(const Extents& e, int rank) {
    const int blocks = ceil_div(e.k, 128);
    if constexpr (cfg::kSplits == 1) {
      return {0, blocks};
    } else {
      return {blocks * rank / cfg::kSplits, blocks * (rank + 1) / cfg::kSplits};
    }
  }

  __device__ static __forceinline__ int rows(const Extents& e) {
    return min(cfg::kBlockM, padded_rows(e));
  }

  __device__ static __forceinline__ int scaled_rows(const Extents& e, const Tile&) {
    return rows(e);
  }
  __device__ static __forceinline__ const float* scales_of_a(const Source& from, const Extents&,
                                                             const Tile& tile, int) {
    return from.scale_a + tile.m0;
  }
  __device__ static __forceinline__ const Source& source_of_b(const Source& from, const Extents&,
                                                              const Tile&) {
    return from;
  }
  __device__ static __forceinline__ int row_of_b(const Extents&, const Tile& tile) {
    return tile.n0;
  }
  __device__ static __forceinline__ void load_a(u32 to, const TensorMap* map, const Tile& tile,
                                                int k, u32 full) {
    tma::load_2d(to, map, k, tile.m0, full);
  }
  __device__ static __forceinline__ void load_b(u32 to, const TensorMap* map, const Tile&, int k,
                                                int row, u32 full) {
    tma::load_2d(to, map, k, row, full);
  }
  __device__ static __forceinline__ const Tile& in_d(const Extents&, const Tile& tile) {
    return tile;
  }

  __device__ static __forceinline__ Limits limits(const Extents& e) { return {e.m, e.n}; }

 private:
  // Tail tiles of a row of tiles.
  __device__ static __forceinline__ int tail_across(const Extents& e) {
    if constexpr (!kHasTail) return 0;
    return ceil_div(e.n - e.order.whole_across * cfg::kBlockN, max(cfg::kTailN, 1));
  }

  // Rows of A up to a multiple of 4: the layout holds scales for as many. Each use rounds again,
  // because a producer beside three consumers has only 32 registers.
  __device__ static __forceinline__ int padded_rows(const Extents& e) {
    return ceil_div(hide_from_optimizer(e.m), 4) * 4;
  }
};

}  // namespace gemm::walk
