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

// Stream-K: the first `tiles` are cut along K into one run of K-blocks a cluster, so that all end
// together; the others are whole.
struct StreamOrder : TileOrder {
  u64 partials;  // fp32 sums of pieces that another cluster finishes, then their flags
  u64 launch;    // what a flag holds when its sums are this launch's
  int tiles;     // as many as the clusters, and the rest of a division by them; or 0
  int blocks;    // K-blocks of every run, and ...
  int longer;    // ... one more of so many runs
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

// The same with stream-K. A run is at least as long as a tile, so a tile is cut once at most: the
// cluster whose run ends in it has its first K-blocks, the cluster before it (whose run begins in
// it) the others. Those are what each computes first; it leaves their sums for its neighbour, whose
// last piece they complete. Runs lie in the reverse order of the clusters: a cluster waits only for
// one that started no later, so it need not run at the same time.
template <int kBand>
struct StreamScheduler : TileScheduler<kBand> {
  using Base = TileScheduler<kBand>;
  using Base::stride, Base::tile;
  int cut_tiles, first_whole;  // tiles below the one are cut; this cluster's first beyond them
  int k_blocks;
  int left;      // of the run, this piece included
  KRange piece;  // of the tile, in K-blocks

  // No piece is shorter than this: a shorter one goes to the neighbour.
  static constexpr int kShortest = 4;

  __device__ __forceinline__ StreamScheduler(int m_tiles, int n_tiles, int first, int step,
                                             const StreamOrder& order, int blocks)
      : Base(m_tiles, n_tiles, first, step, order, blocks),
        cut_tiles(order.tiles),
        first_whole(order.tiles + first),
        k_blocks(blocks),
        left(0),
        piece{0, blocks} {
    if (cut_tiles == 0) return;
    const int run = step - 1 - first;
    const int begin = start_of(run, order);
    left = start_of(run + 1, order) - begin;
    tile = begin / k_blocks;
    piece.first = begin - tile * k_blocks;
    piece.last = min(k_blocks, piece.first + left);
  }
  __device__ __forceinline__ void advance() {
    if (tile >= cut_tiles) {
      tile += stride;
      return;
    }
    left -= piece.last - piece.first;
    piece = {0, left > 0 ? min(k_blocks, left) : k_blocks};
    tile = left > 0 ? tile + 1 : first_whole;
  }
  __device__ __forceinline__ KRange k_range(const KRange&) const { return piece; }

 private:
  __device__ __forceinline__ int start_of(int run, const StreamOrder& order) const {
    const int block = run * order.blocks + min(run, order.longer);
    const int within = block % k_blocks;
    return within < kShortest              ? block - within
           : k_blocks - within < kShortest ? block - within + k_blocks
                                           : block;
  }
};

}  // namespace gemm
