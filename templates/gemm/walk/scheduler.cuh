// The static order of a persistent grid over the tiles of one matrix. It keeps the operands of the
// tiles in flight inside L2.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace gemm {

// Division by a number that only the host knows: x / d = 2 x * multiplier >> 32 + shift, for any
// x < 2^31. (A division on the device takes twenty instructions in each role, and 4 % of a
// compile.)
struct Divisor {
  u32 multiplier;
  u32 shift;
  __device__ __forceinline__ u32 divide(u32 x) const {
    return __umulhi(x + x, multiplier) >> shift;
  }
};

// The part of the tile order that the host computes.
struct TileOrder {
  Divisor band_tiles;       // tiles of a whole band
  Divisor last_band_width;  // tiles across the last band; 1 if it is a whole one
  // These three are set if there is a tail.
  Divisor tail_across;  // tail tiles behind the whole tiles of a row of tiles
  int whole_across;     // whole tiles of a row of tiles
  int idle;             // CTAs for which the last round of whole tiles has no tile
};

// The tiles are cluster tiles, tiles_m x tiles_n of them. The order visits bands of kBand tile rows
// (or columns) one after the other. Inside a band the index across the band runs fastest. So the
// tiles in flight span kBand rows and in_flight / kBand columns (or the reverse). The band's rows
// of A (columns of B) stay in L2, and the other operand is read once a band. Tiles next to each
// other in the order read the same part of B in a band of rows, and of A in a band of columns.
//
// With kHasTail the columns behind the whole tiles are covered by tail tiles of half the width,
// which shortens a ragged last round. The CTAs that the last round of whole tiles leaves idle take
// two tail tiles each meanwhile. Then all CTAs take turns:
//
//     CTA 0   | whole | whole | whole | t | t        idle = 2
//     CTA 1   | whole | whole | whole | t |
//     CTA 2   | whole | whole | t | t | t |
//     CTA 3   | whole | whole | t | t | t |
template <int kBand, bool kOfColumns, bool kHasTail>
struct TileScheduler {
  int tiles_m;
  int tiles_n;
  int tile;
  int stride;
  int idle;  // CTAs without a whole tile in the last round, if there is a tail
  int tail_tiles;
  int tail;  // index of the next tail tile

  __device__ __forceinline__ TileScheduler(int m_tiles, int n_tiles, int first, int step,
                                           const TileOrder& order, int tail_across = 0)
      : tiles_m(m_tiles), tiles_n(n_tiles), tile(first), stride(step) {
    if constexpr (kHasTail) {
      tail_tiles = m_tiles * tail_across;
      idle = order.idle;
      const int busy = step - order.idle;
      tail = first < busy ? 2 * order.idle + first : first - busy;
    }
  }

  __device__ __forceinline__ bool is_tail() const { return kHasTail && tile >= tiles_m * tiles_n; }
  __device__ __forceinline__ bool valid() const {
    return tile < tiles_m * tiles_n || (kHasTail && tail < tail_tiles);
  }
  __device__ __forceinline__ void advance() {
    if (kHasTail && is_tail()) {
      tail += tail < idle ? idle : stride;
    } else {
      tile += stride;
    }
  }

  // Row and column of a whole tile, in tiles.
  __device__ __forceinline__ void coordinates(const TileOrder& order, int& tile_m,
                                              int& tile_n) const {
    const int first = static_cast<int>(order.band_tiles.divide(static_cast<u32>(tile))) * kBand;
    const int within = tile - first * (kOfColumns ? tiles_m : tiles_n);
    const int width = min(kBand, (kOfColumns ? tiles_n : tiles_m) - first);
    const u32 index = static_cast<u32>(within);
    int& across = kOfColumns ? tile_n : tile_m;
    int& along = kOfColumns ? tile_m : tile_n;
    along = static_cast<int>(width == kBand ? index / kBand : order.last_band_width.divide(index));
    across = first + within - along * width;
  }
  // Row and column of a tail tile, whose index runs fastest across the columns. `column` counts the
  // tail tiles of its row.
  __device__ __forceinline__ void tail_coordinates(const TileOrder& order, int across, int& tile_m,
                                                   int& column) const {
    tile_m = static_cast<int>(order.tail_across.divide(static_cast<u32>(tail)));
    column = tail - tile_m * across;
  }
};

}  // namespace gemm
