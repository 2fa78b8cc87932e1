// The walk over the tiles: the kernel's own scheduler, compiled for the host, on what the launch
// gives it to divide by.
#include "runtime/engine/tile_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace device {
using std::min;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
inline u32 __umulhi(u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }
#define OCTILE_EMITTED 1
#define __device__
#define __forceinline__ inline
#include "templates/gemm/scheduler.cuh"
#undef __device__
#undef __forceinline__
}  // namespace device

namespace octile {
namespace {

constexpr std::uint32_t kLargest = 0x7fffffffU;

void expect_divides(std::uint32_t d, std::uint32_t x) {
  const Divisor by = divisor_of(d);
  ASSERT_EQ((device::gemm::Divisor{by.multiplier, by.shift}.divide(x)), x / d) << x << " / " << d;
}

TEST(TileOrder, DivisorIsExactBesideItsMultiples) {
  std::mt19937 engine(1);
  const auto below = [&engine](std::uint32_t end) {
    return std::uniform_int_distribution<std::uint32_t>(0, end - 1)(engine);
  };
  std::vector<std::uint32_t> divisors{1, kLargest, kLargest - 1};
  for (std::uint32_t d = 2; d <= 300; ++d) divisors.push_back(d);
  for (int bit = 9; bit < 31; ++bit) {
    for (const int off : {-1, 0, 1})
      divisors.push_back((1U << bit) + static_cast<std::uint32_t>(off));
  }
  for (int i = 0; i < 300; ++i) divisors.push_back(below(kLargest) + 1);
  for (const std::uint32_t d : divisors) {
    const std::uint32_t quotients = kLargest / d;
    for (int i = 0; i < 100; ++i) {
      const std::uint32_t multiple = below(quotients) * d;
      expect_divides(d, multiple);
      if (multiple > 0) expect_divides(d, multiple - 1);
      if (multiple < kLargest) expect_divides(d, multiple + 1);
    }
    expect_divides(d, 0);
    expect_divides(d, quotients * d);
    expect_divides(d, kLargest);
  }
}

// Coordinates of all tiles in the order of the walk.
template <int kBand, bool kOfColumns>
std::vector<std::pair<int, int>> walk(int tiles_m, int tiles_n) {
  const TileOrder order = tile_order(tiles_m, tiles_n, {kBand, kOfColumns});
  const device::gemm::TileOrder on_device{
      {order.band_tiles.multiplier, order.band_tiles.shift},
      {order.last_band_width.multiplier, order.last_band_width.shift}};
  std::vector<std::pair<int, int>> tiles;
  for (device::gemm::TileScheduler<kBand, kOfColumns> scheduler(tiles_m, tiles_n, 0, 1, on_device);
       scheduler.valid(); scheduler.advance()) {
    std::pair<int, int>& tile = tiles.emplace_back();
    scheduler.coordinates(tile.first, tile.second);
  }
  return tiles;
}

template <int kBand>
void expect_bands(int tiles_m, int tiles_n) {
  std::vector<std::pair<int, int>> of_rows, of_columns;
  for (int first = 0; first < tiles_m; first += kBand) {
    for (int n = 0; n < tiles_n; ++n) {
      for (int m = first; m < std::min(first + kBand, tiles_m); ++m) of_rows.emplace_back(m, n);
    }
  }
  EXPECT_EQ((walk<kBand, false>(tiles_m, tiles_n)), of_rows) << tiles_m << " x " << tiles_n;
  for (int first = 0; first < tiles_n; first += kBand) {
    for (int m = 0; m < tiles_m; ++m) {
      for (int n = first; n < std::min(first + kBand, tiles_n); ++n) of_columns.emplace_back(m, n);
    }
  }
  EXPECT_EQ((walk<kBand, true>(tiles_m, tiles_n)), of_columns) << tiles_m << " x " << tiles_n;
}

TEST(TileOrder, WalksBandByBandAcrossThem) {
  for (const int tiles_m : {1, 2, 3, 7, 8, 9, 15, 16, 17, 64, 65}) {
    for (const int tiles_n : {1, 2, 5, 17, 132, 256}) {
      expect_bands<1>(tiles_m, tiles_n);
      expect_bands<2>(tiles_m, tiles_n);
      expect_bands<3>(tiles_m, tiles_n);
      expect_bands<8>(tiles_m, tiles_n);
      expect_bands<16>(tiles_m, tiles_n);
      expect_bands<1000000>(tiles_m, tiles_n);
    }
  }
}

}  // namespace
}  // namespace octile
