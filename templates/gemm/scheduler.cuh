// Which output tile a cluster works on next: static and persistent, in an order that keeps the
// operands of the tiles in flight inside L2.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace gemm {

// Division by a number only the host knows, x / d = x * multiplier >> shift, for any x < 2^31. (A
// division on the device takes twenty instructions, in every role, and of a compile 4 %.)
struct Divisor {
  u32 multiplier;
  u32 shift;
  __device__ __forceinline__ u32 divide(u32 x) const {
    return static_cast<u32>(static_cast<u64>(x) * multiplier >> shift);
  }
};

// What the order of tiles divides by.
struct TileOrder {
  Divisor band_tiles;      // tiles of a whole band
  Divisor last_band_rows;  // tile rows of the last band, if it is not a whole one
};

// K-blocks [first, last) of a tile.
struct KRange {
  int first, last;
};

// Stream-K: what does not fill a wave, the first `tiles` of the walk, is cut along K into `splits`
// pieces each.
struct StreamOrder : TileOrder {
  u64 partials;  // fp32 sums of pieces, then their flags
  u64 launch;    // what a flag holds when its sums are this launch's
  int tiles;     // 0: none is cut
  int splits;
};

// Tiles are cluster tiles, tiles_m x tiles_n of them. The order walks bands of kBand tile rows;
// inside a band the row index is fastest, so `clusters in flight` tiles span kBand rows and
// in_flight / kBand columns: the A rows of the band stay in L2 while B streams by once a band.
template <int kBand>
struct TileScheduler {
  int tiles_m;
  int tiles_n;
  int tile;
  int stride;
  TileOrder order;

  __device__ __forceinline__ TileScheduler(int m_tiles, int n_tiles, int first, int step,
                                           const TileOrder& tile_order, int)
      : tiles_m(m_tiles), tiles_n(n_tiles), tile(first), stride(step), order(tile_order) {}

  __device__ __forceinline__ bool valid() const { return tile < tiles_m * tiles_n; }
  __device__ __forceinline__ void advance() { tile += stride; }
  // K-blocks of the tile to sum, of a CTA that sums `all` of a whole one.
  __device__ __forceinline__ KRange k_range(const KRange& all) const { return all; }

  __device__ __forceinline__ void coordinates(int& tile_m, int& tile_n) const {
    const u32 index = static_cast<u32>(tile);
    const int band = static_cast<int>(order.band_tiles.divide(index));
    const int within = tile - band * kBand * tiles_n;
    const int rows = min(kBand, tiles_m - band * kBand);
    tile_n = rows == kBand
                 ? within / kBand
                 : static_cast<int>(order.last_band_rows.divide(static_cast<u32>(within)));
    tile_m = band * kBand + within - tile_n * rows;
  }
};

// The same with stream-K: whole waves first, then a piece. Pieces of the same K-blocks run side by
// side, as whole tiles do, so that what they read at once is the same to many of them (L2 delivers
// no more than that to all SMs: pieces that begin at any K-block took as long as they saved). The
// cluster with a tile's first K-blocks adds up the sums of the others, which have lower indices: it
// waits only for clusters that started no later.
template <int kBand>
struct StreamScheduler : TileScheduler<kBand> {
  using Base = TileScheduler<kBand>;
  using Base::stride, Base::tile, Base::tiles_m, Base::tiles_n;
  int cluster;
  int k_blocks;
  int cut_tiles, splits;
  KRange piece;  // of the tile, in K-blocks

  __device__ __forceinline__ StreamScheduler(int m_tiles, int n_tiles, int first, int step,
                                             const StreamOrder& order, int blocks)
      : Base(m_tiles, n_tiles, order.tiles + first, step, order, blocks),
        cluster(first),
        k_blocks(blocks),
        cut_tiles(order.tiles),
        splits(order.splits),
        piece{0, blocks} {}
  __device__ __forceinline__ void advance() {
    const int tiles = tiles_m * tiles_n;
    tile = tile < cut_tiles ? tiles : tile + stride;
    if (tile < tiles || piece.last - piece.first < k_blocks || cluster >= cut_tiles * splits)
      return;
    const int rank = splits - 1 - cluster / cut_tiles;
    tile = cluster % cut_tiles;
    piece = {k_blocks * rank / splits, k_blocks * (rank + 1) / splits};
  }
  __device__ __forceinline__ KRange k_range(const KRange&) const { return piece; }
};

}  // namespace gemm
