#include "runtime/engine/tile_order.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace octile {

// Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), theorem
// 4.2: with l = ceil(log2 d) and m = ceil(2^(31 + l) / d), floor(x m / 2^(31 + l)) is x / d for
// every x below 2^31. m is below 2^32 because d > 2^(l - 1).
Divisor divisor_of(std::uint32_t d) {
  const auto log2 = static_cast<std::uint32_t>(std::bit_width(d - 1));
  const std::uint64_t power = std::uint64_t{1} << (31 + log2);
  return {static_cast<std::uint32_t>((power + d - 1) / d), 31 + log2};
}

TileOrder tile_order(std::int64_t tiles_m, std::int64_t tiles_n, int raster_group) {
  // No tile's index reaches 2^31 - 1: a longer band holds them all, as one of that length does.
  constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  return {divisor_of(static_cast<std::uint32_t>(std::min(tiles_n * raster_group, kLongest))),
          divisor_of(std::max(static_cast<std::uint32_t>(tiles_m % raster_group), 1U))};
}

std::int64_t cuttable_tiles(std::int64_t tiles_m, std::int64_t tiles_n, int raster_group,
                            bool ragged) {
  const std::int64_t rows = ragged ? (tiles_m - 2) / raster_group * raster_group : tiles_m;
  return std::max<std::int64_t>(rows, 0) * tiles_n;
}

StreamOrder stream_order(TileOrder order, std::int64_t tiles, std::int64_t cuttable,
                         std::int64_t clusters, std::int64_t k_blocks) {
  // What leaving and taking a piece costs every cluster, in K-blocks; and shorter tiles are not
  // cut.
  constexpr std::int64_t kCost = 8;
  constexpr std::int64_t kFewestBlocks = 16;
  StreamOrder stream{order, 0, 0, 0, 0, 0};
  const std::int64_t last_wave = tiles % clusters;
  const std::int64_t idle_blocks = (clusters - last_wave) * k_blocks;
  if (tiles < clusters || last_wave == 0 || clusters + last_wave > cuttable ||
      k_blocks < kFewestBlocks || idle_blocks < kCost * clusters)
    return stream;
  const std::int64_t blocks = (clusters + last_wave) * k_blocks;
  if (blocks > std::numeric_limits<std::int32_t>::max()) return stream;
  stream.tiles = static_cast<std::int32_t>(clusters + last_wave);
  stream.blocks = static_cast<std::int32_t>(blocks / clusters);
  stream.longer = static_cast<std::int32_t>(blocks % clusters);
  return stream;
}

}  // namespace octile
