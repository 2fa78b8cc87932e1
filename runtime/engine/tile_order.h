// What the GEMM kernel's walk over its tiles divides by, worked out on the host: a division by a
// number that is not a constant takes twenty instructions on the device, in every role of it.
#pragma once

#include <cstdint>

#include "generator/gemm_config.h"

namespace octile {

// x / d = 2 x * multiplier >> 32 + shift, in 64 bits, for every 0 <= x < 2^31.
struct Divisor {
  std::uint32_t multiplier;
  std::uint32_t shift;
};
// 1 <= d < 2^31.
Divisor divisor_of(std::uint32_t d);

// The kernel's parameter `order` (templates/gemm/scheduler.cuh): bands of so many tile rows, or
// columns.
struct TileOrder {
  Divisor band_tiles;       // tiles of a whole band
  Divisor last_band_width;  // tiles across the last band; 1 where all bands are whole
};
// Both counts are in tiles of a cluster, at least 1; their product is below 2^31 - 1.
TileOrder tile_order(std::int64_t tiles_m, std::int64_t tiles_n, Raster raster);

}  // namespace octile
