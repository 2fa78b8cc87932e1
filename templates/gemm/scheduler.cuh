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

// What the order of tiles divides by.
struct TileOrder {
  Divisor band_tiles;       // tiles of a whole band
  Divisor last_band_width;  // tiles across the last band, if it is not a whole one
};

// Tiles are cluster tiles, tiles_m x tiles_n of them. The order walks bands of kBand tile rows, or
// columns. Inside a band the index across it is fastest, so `clusters in flight` tiles span kBand
// rows and in_flight / kBand columns, or the other way round: the band's rows of A (columns of B)
// stay in L2 while the other operand streams by once a band. Neighbours in the order read the same
// of B in a band of rows, of A in one of columns.
template <int kBand, bool kOfColumns>
struct TileScheduler {
  int tiles_m;
  int tiles_n;
  int tile;
  int stride;
  TileOrder order;

  __device__ __forceinline__ TileScheduler(int m_tiles, int n_tiles, int first, int step,
                                           const TileOrder& tile_order)
      : tiles_m(m_tiles), tiles_n(n_tiles), tile(first), stride(step), order(tile_order) {}

  __device__ __forceinline__ bool valid() const { return tile < tiles_m * tiles_n; }
  __device__ __forceinline__ void advance() { tile += stride; }

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
};

}  // namespace gemm
