// Which output tile a cluster works on next: static and persistent, in an order that keeps the
// operands of the tiles in flight inside L2.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace gemm {

// Division by a number only the host knows, x / d = 2 x * multiplier >> 32 + shift, for any x <
// 2^31. (A division on the device takes twenty instructions, in every role, and of a compile 4 %.)
struct Divisor {
  u32 multiplier;
  u32 shift;
  __device__ __forceinline__ u32 divide(u32 x) const {
    return __umulhi(x + x, multiplier) >> shift;
  }
};

// What of the order of tiles the host works out.
struct TileOrder {
  Divisor band_tiles;       // tiles of a whole band
  Divisor last_band_width;  // tiles across the last band, if it is not a whole one
  // Where narrow tiles even out the last round:
  Divisor tail_across;  // narrow tiles behind the whole ones of a row of tiles
  int whole_across;       // whole tiles of a row of tiles
  int idle;               // CTAs that the last round of whole tiles has none for
};

// Tiles are cluster tiles, tiles_m x tiles_n of them. The order walks bands of kBand tile rows, or
// columns. Inside a band the index across it is fastest, so `clusters in flight` tiles span kBand
// rows and in_flight / kBand columns, or the other way round: the band's rows of A (columns of B)
// stay in L2 while the other operand streams by once a band. Neighbours in the order read the same
// of B in a band of rows, of A in one of columns.
//
// With kNarrow the columns behind the whole tiles are narrow ones, half as wide: what would be a
// last round of few whole tiles is less than that. The CTAs which the last round of whole tiles
// leaves idle take two narrow ones meanwhile, then all take turns:
//
//     CTA 0   | whole | whole | whole | n | n        idle = 2
//     CTA 1   | whole | whole | whole | n |
//     CTA 2   | whole | whole | n | n | n |
//     CTA 3   | whole | whole | n | n | n |
template <int kBand, bool kOfColumns, bool kNarrow>
struct TileScheduler {
  int tiles_m;
  int tiles_n;
  int tile;
  int stride;
  TileOrder order;
  int narrow_tiles;
  int narrow;  // the next one's index

  __device__ __forceinline__ TileScheduler(int m_tiles, int n_tiles, int first, int step,
                                           const TileOrder& tile_order, int tail_across = 0)
      : tiles_m(m_tiles), tiles_n(n_tiles), tile(first), stride(step), order(tile_order) {
    if constexpr (kNarrow) {
      narrow_tiles = m_tiles * tail_across;
      const int busy = step - order.idle;
      narrow = first < busy ? 2 * order.idle + first : first - busy;
    }
  }

  __device__ __forceinline__ bool is_narrow() const { return kNarrow && tile >= tiles_m * tiles_n; }
  __device__ __forceinline__ bool valid() const {
    return tile < tiles_m * tiles_n || (kNarrow && narrow < narrow_tiles);
  }
  __device__ __forceinline__ void advance() {
    if (kNarrow && is_narrow()) {
      narrow += narrow < order.idle ? order.idle : stride;
    } else {
      tile += stride;
    }
  }

  // Of a whole tile.
  __device__ __forceinline__ void coordinates(int& tile_m, int& tile_n) const {
    const int first = static_cast<int>(order.band_tiles.divide(static_cast<u32>(tile))) * kBand;
    const int within = tile - first * (kOfColumns ? tiles_m : tiles_n);
    const int width = min(kBand, (kOfColumns ? tiles_n : tiles_m) - first);
    const u32 index = static_cast<u32>(within);
    int& across = kOfColumns ? tile_n : tile_m;
    int& along = kOfColumns ? tile_m : tile_n;
    along = static_cast<int>(width == kBand ? index / kBand : order.last_band_width.divide(index));
    across = first + within - along * width;
  }
  // Of a narrow one, across which the index runs fastest: `column` among the narrow ones of its
  // row.
  __device__ __forceinline__ void narrow_coordinates(int across, int& tile_m, int& column) const {
    tile_m = static_cast<int>(order.tail_across.divide(static_cast<u32>(narrow)));
    column = narrow - tile_m * across;
  }
};

}  // namespace gemm
