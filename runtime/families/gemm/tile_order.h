// Divisors of the GEMM kernel's walk over its tiles, prepared on the host. A division by a number
// that is not a constant takes twenty instructions on the device, in each warp role.
#pragma once

#include <cstdint>

#include "generator/gemm/config.h"

namespace octile {

// x / d = 2 x * multiplier >> 32 + shift, in 64 bits, for every 0 <= x < 2^31.
struct Divisor {
  std::uint32_t multiplier;
  std::uint32_t shift;
};
// 1 <= d < 2^31.
Divisor divisor_of(std::uint32_t d);

// The kernel's parameter `order` (templates/gemm/walk/scheduler.cuh): bands of a number of
// tile rows, or columns.
struct TileOrder {
  Divisor band_tiles;       // tiles of a whole band
  Divisor last_band_width;  // tiles across the last band; 1 where all bands are whole
  Divisor tail_across;      // tail tiles of a row of tiles; 1 where there are none
  std::int32_t whole_across;
  std::int32_t idle;
};
// Tiles are fewer than 2^31 - 1.
TileOrder tile_order(const TileShares& shares, Raster raster);

}  // namespace octile
