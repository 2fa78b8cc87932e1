// The walk over the tiles: the kernel's own scheduler, compiled for the host, with the divisors
// that the launch gives it.
#include "runtime/families/gemm/tile_order.h"

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
#include "templates/gemm/walk/scheduler.cuh"
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

device::gemm::TileOrder on_device(const TileOrder& order) {
  const auto divisor = [](Divisor d) { return device::gemm::Divisor{d.multiplier, d.shift}; };
  return {divisor(order.band_tiles), divisor(order.last_band_width), divisor(order.tail_across),
          order.whole_across, order.idle};
}

// Returns the coordinates of all tiles in the order of the walk.
template <int kBand, bool kOfColumns>
std::vector<std::pair<int, int>> walk(int tiles_m, int tiles_n) {
  TileShares shares;
  shares.tiles_m = tiles_m;
  shares.whole_across = tiles_n;
  const device::gemm::TileOrder order = on_device(tile_order(shares, {kBand, kOfColumns}));
  std::vector<std::pair<int, int>> tiles;
  for (device::gemm::TileScheduler<kBand, kOfColumns, false> scheduler(tiles_m, tiles_n, 0, 1,
                                                                       order);
       scheduler.valid(); scheduler.advance()) {
    std::pair<int, int>& tile = tiles.emplace_back();
    scheduler.coordinates(order, tile.first, tile.second);
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

// The columns of a row of `n` that each CTA of a grid computes: the first column and the width of
// each of its tiles.
struct Walked {
  std::vector<double> busy;  // tiles of each CTA: a whole tile is 1, a half-width one 0.5
  std::vector<std::vector<std::pair<int, int>>> of_row;  // by tile row: first column, width
};
constexpr int kWidth = 128, kTail = 64;

Walked walk_tail(const TileShares& shares, int ctas) {
  const device::gemm::TileOrder order = on_device(tile_order(shares, {3, true}));
  const auto tiles_m = static_cast<int>(shares.tiles_m);
  const auto across = static_cast<int>(shares.tail_across);
  Walked walked;
  walked.of_row.resize(static_cast<std::size_t>(tiles_m));
  for (int cta = 0; cta < ctas; ++cta) {
    double busy = 0;
    for (device::gemm::TileScheduler<3, true, true> scheduler(tiles_m, order.whole_across, cta,
                                                              ctas, order, across);
         scheduler.valid(); scheduler.advance()) {
      int m = 0, column = 0;
      if (scheduler.is_tail()) {
        scheduler.tail_coordinates(order, across, m, column);
      } else {
        scheduler.coordinates(order, m, column);
      }
      const int first =
          scheduler.is_tail() ? order.whole_across * kWidth + column * kTail : column * kWidth;
      const int width = scheduler.is_tail() ? kTail : kWidth;
      walked.of_row.at(static_cast<std::size_t>(m)).emplace_back(first, width);
      busy += scheduler.is_tail() ? 0.5 : 1;
    }
    walked.busy.push_back(busy);
  }
  return walked;
}

// Expects that every column of every tile row is computed once, and that no CTA is busy for longer
// than predicted.
void expect_even(std::int64_t m, std::int64_t n, int ctas) {
  const TileShares shares = share_tiles(m, n, 192, kWidth, kTail, ctas);
  const TileShares whole = share_tiles(m, n, 192, kWidth, 0, ctas);
  EXPECT_LE(shares.rounds, whole.rounds) << m << " x " << n;
  EXPECT_LT(shares.whole_across * kWidth, n + kWidth);
  Walked walked = walk_tail(shares, ctas);
  for (auto& row : walked.of_row) {
    std::sort(row.begin(), row.end());
    int column = 0;
    for (const auto& [first, width] : row) {
      ASSERT_EQ(first, column) << m << " x " << n << " by " << ctas;
      column += width;
    }
    ASSERT_GE(column, n);
    ASSERT_LT(column - row.back().second, n);
  }
  // Half a round counts as slightly more than half a tile's time.
  EXPECT_LE(*std::max_element(walked.busy.begin(), walked.busy.end()), shares.rounds + 1e-9)
      << m << " x " << n << " by " << ctas;
}

TEST(TileOrder, TailTilesCoverWhatWholeOnesLeave) {
  for (const int ctas : {1, 2, 7, 78, 132}) {
    for (const std::int64_t m : {1, 192, 193, 1000, 4096, 8192, 12000}) {
      for (const std::int64_t n : {8, 64, 72, 128, 200, 2112, 2560, 4096, 7168, 24576}) {
        expect_even(m, n, ctas);
      }
    }
  }
}

TEST(TileOrder, TailTilesShortenARaggedLastRound) {
  const auto rounds = [](std::int64_t m, std::int64_t n, int tail_n) {
    return share_tiles(m, n, 192, kWidth, tail_n, 132).rounds;
  };
  EXPECT_EQ(rounds(8192, 2112, 0), 6);
  EXPECT_NEAR(rounds(8192, 2112, kTail), 5.55, 1e-9);
  EXPECT_NEAR(rounds(8192, 4096, kTail), 10.55, 1e-9) << "two tail tiles beside a whole one";
  EXPECT_EQ(rounds(4096, 24576, kTail), 32) << "nothing to even out";
}

}  // namespace
}  // namespace octile
