// The walk over the tiles: the kernel's own scheduler, compiled for the host, on what the launch
// gives it to divide by.
#include "runtime/engine/tile_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace device {
using std::max;
using std::min;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
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
template <int kBand>
std::vector<std::pair<int, int>> walk(int tiles_m, int tiles_n) {
  const TileOrder order = tile_order(tiles_m, tiles_n, kBand);
  const device::gemm::TileOrder on_device{
      {order.band_tiles.multiplier, order.band_tiles.shift},
      {order.last_band_rows.multiplier, order.last_band_rows.shift}};
  std::vector<std::pair<int, int>> tiles;
  for (device::gemm::TileScheduler<kBand> scheduler(tiles_m, tiles_n, 0, 1, on_device, 1);
       scheduler.valid(); scheduler.advance()) {
    std::pair<int, int>& tile = tiles.emplace_back();
    scheduler.coordinates(tile.first, tile.second);
  }
  return tiles;
}

template <int kBand>
void expect_bands(int tiles_m, int tiles_n) {
  std::vector<std::pair<int, int>> expected;
  for (int first = 0; first < tiles_m; first += kBand) {
    for (int n = 0; n < tiles_n; ++n) {
      for (int m = first; m < std::min(first + kBand, tiles_m); ++m) expected.emplace_back(m, n);
    }
  }
  EXPECT_EQ((walk<kBand>(tiles_m, tiles_n)), expected) << tiles_m << " x " << tiles_n;
}

TEST(TileOrder, WalksBandByBandColumnByColumn) {
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

// ---- stream-K -----------------------------------------------------------------------------------

using Walk = device::gemm::StreamScheduler<8>;

struct Piece {
  int cluster, step, first, last;
};

struct Walked {
  StreamOrder order;
  std::vector<std::vector<Piece>> tiles;
  std::vector<int> steps;  // of every cluster
};

// What every cluster does, tile by tile.
Walked walk_all(int tiles, int clusters, int k_blocks) {
  Walked walked;
  walked.order = stream_order(tile_order(1, tiles, 8), tiles, tiles, clusters, k_blocks);
  device::gemm::StreamOrder on_device{};
  on_device.tiles = walked.order.tiles;
  on_device.splits = walked.order.splits;
  walked.tiles.resize(static_cast<std::size_t>(tiles));
  for (int cluster = 0; cluster < clusters; ++cluster) {
    int step = 0;
    for (Walk walk(1, tiles, cluster, clusters, on_device, k_blocks); walk.valid();
         walk.advance(), ++step) {
      const auto range = walk.k_range({0, k_blocks});
      walked.tiles.at(static_cast<std::size_t>(walk.tile))
          .push_back({cluster, step, range.first, range.last});
    }
    walked.steps.push_back(step);
  }
  return walked;
}

// A tile is whole, or in pieces that are their clusters' last; the first is that of the highest
// cluster, which finds the others where it looks for them.
void expect_pieces(int tiles, int clusters, int k_blocks) {
  SCOPED_TRACE(testing::Message() << tiles << " tiles, " << clusters << " clusters, " << k_blocks
                                  << " K-blocks");
  Walked walked = walk_all(tiles, clusters, k_blocks);
  int cut = 0;
  for (auto& tile : walked.tiles) {
    std::ranges::sort(tile, {}, &Piece::first);
    ASSERT_FALSE(tile.empty());
    ASSERT_EQ(tile.front().first, 0);
    ASSERT_EQ(tile.back().last, k_blocks);
    if (tile.size() == 1) continue;
    ++cut;
    ASSERT_EQ(std::ssize(tile), walked.order.splits);
    for (std::size_t rank = 0; rank < tile.size(); ++rank) {
      const Piece& piece = tile[rank];
      if (rank > 0) ASSERT_EQ(piece.first, tile[rank - 1].last);
      ASSERT_EQ(piece.cluster, tile[0].cluster - static_cast<int>(rank) * walked.order.tiles);
      ASSERT_EQ(piece.step, walked.steps.at(static_cast<std::size_t>(piece.cluster)) - 1);
    }
  }
  ASSERT_EQ(cut, walked.order.tiles);
}

TEST(StreamOrder, EveryKBlockOnce) {
  for (const int clusters : {1, 2, 3, 7, 66, 132}) {
    for (const int k_blocks : {1, 16, 17, 24, 56, 143}) {
      for (int tiles = 1; tiles < 4 * clusters + 3; tiles += tiles < 20 ? 1 : 7)
        expect_pieces(tiles, clusters, k_blocks);
    }
  }
}

TEST(StreamOrder, CutsTilesThatFillNoMoreThanHalfAWave) {
  const auto cut = [](std::int64_t tiles, std::int64_t k_blocks) {
    const StreamOrder order = stream_order({}, tiles, tiles, 132, k_blocks);
    return std::pair(order.tiles, order.splits);
  };
  const std::pair none(0, 1);
  EXPECT_EQ(cut(132 + 66, 56), std::pair(66, 2));
  EXPECT_EQ(cut(4 * 132 + 44, 56), std::pair(44, 3));
  EXPECT_EQ(cut(132 + 8, 56), std::pair(8, 4)) << "never more than four";
  EXPECT_EQ(cut(132 + 67, 56), none) << "more than half a wave";
  EXPECT_EQ(cut(264, 56), none) << "whole waves";
  EXPECT_EQ(cut(50, 56), none) << "less than a wave";
  EXPECT_EQ(cut(132 + 66, 30), none) << "too little is saved";
  EXPECT_EQ(stream_order({}, 132 + 44, 43, 132, 56).tiles, 0) << "too few may be cut";
  EXPECT_EQ(stream_order({}, 132 + 44, 44, 132, 56).tiles, 44);
}

// The last two rows of tiles overlap where the last is not whole.
TEST(StreamOrder, TilesThatOverlapAreNotCut) {
  EXPECT_EQ(cuttable_tiles(8, 32, 8, false), 8 * 32);
  EXPECT_EQ(cuttable_tiles(8, 32, 8, true), 0);
  EXPECT_EQ(cuttable_tiles(9, 32, 8, true), 0);
  EXPECT_EQ(cuttable_tiles(10, 32, 8, true), 8 * 32);
  EXPECT_EQ(cuttable_tiles(17, 32, 8, true), 8 * 32);
  EXPECT_EQ(cuttable_tiles(18, 32, 8, true), 16 * 32);
  EXPECT_EQ(cuttable_tiles(1, 32, 8, true), 0);
}

}  // namespace
}  // namespace octile
