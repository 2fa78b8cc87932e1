// Which output tile a cluster works on next: static and persistent, in an order that keeps the
// operands of the tiles in flight inside L2.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace gemm {

// Tiles are cluster tiles, tiles_m x tiles_n of them. The order walks bands of kBand tile rows;
// inside a band the row index is fastest, so `clusters in flight` tiles span kBand rows and
// in_flight / kBand columns: the A rows of the band stay in L2 while B streams by once a band.
template <int kBand>
struct TileScheduler {
  int tiles_m;
  int tiles_n;
  int tile;
  int stride;

  __device__ __forceinline__ TileScheduler(int m_tiles, int n_tiles, int first, int step)
      : tiles_m(m_tiles), tiles_n(n_tiles), tile(first), stride(step) {}

  __device__ __forceinline__ bool valid() const { return tile < tiles_m * tiles_n; }
  __device__ __forceinline__ void advance() { tile += stride; }

  __device__ __forceinline__ void coordinates(int& tile_m, int& tile_n) const {
    // Unsigned: a division takes half the instructions, and their compilation half the time.
    const u32 index = static_cast<u32>(tile);
    const u32 band_tiles = static_cast<u32>(kBand) * static_cast<u32>(tiles_n);
    const u32 band = index / band_tiles;
    const int first_row = static_cast<int>(band) * kBand;
    const u32 rows = static_cast<u32>(min(kBand, tiles_m - first_row));
    const u32 within = index - band * band_tiles;
    const u32 column = within / rows;
    tile_n = static_cast<int>(column);
    tile_m = first_row + static_cast<int>(within - column * rows);
  }
};

}  // namespace gemm
