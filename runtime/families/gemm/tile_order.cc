#include "runtime/families/gemm/tile_order.h"

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
  return {static_cast<std::uint32_t>((power + d - 1) / d), log2};
}

TileOrder tile_order(const TileShares& shares, Raster raster) {
  // No tile's index reaches 2^31 - 1: a longer band holds them all, as one of that length does.
  static constexpr std::int64_t kLongest = std::numeric_limits<std::int32_t>::max();
  const std::int64_t across = raster.of_columns ? shares.whole_across : shares.tiles_m;
  const std::int64_t along = raster.of_columns ? shares.tiles_m : shares.whole_across;
  const auto divisor = [](std::int64_t d) {
    return divisor_of(static_cast<std::uint32_t>(std::clamp(d, std::int64_t{1}, kLongest)));
  };
  return {divisor(along * raster.band), divisor(across % raster.band), divisor(shares.tail_across),
          static_cast<std::int32_t>(shares.whole_across), static_cast<std::int32_t>(shares.idle)};
}

}  // namespace octile
