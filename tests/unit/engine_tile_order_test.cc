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
constexpr int kShortest = Walk::kShortest;

struct Piece {
  int cluster, step, first, last;
};

// What every cluster does, tile by tile.
std::vector<std::vector<Piece>> pieces_of(int tiles, int clusters, int k_blocks) {
  const StreamOrder order = stream_order(tile_order(1, tiles, 8), tiles, tiles, clusters, k_blocks);
  device::gemm::StreamOrder on_device{};
  on_device.tiles = order.tiles;
  on_device.blocks = order.blocks;
  on_device.longer = order.longer;
  std::vector<std::vector<Piece>> pieces(static_cast<std::size_t>(tiles));
  for (int cluster = 0; cluster < clusters; ++cluster) {
    int step = 0;
    for (Walk walk(1, tiles, cluster, clusters, on_device, k_blocks); walk.valid();
         walk.advance(), ++step) {
      const auto range = walk.k_range({0, k_blocks});
      pieces.at(static_cast<std::size_t>(walk.tile))
          .push_back({cluster, step, range.first, range.last});
    }
  }
  return pieces;
}

// A tile is whole, or in two pieces: the last K-blocks are the first that a cluster does, and the
// next cluster finishes it.
void expect_pieces(int tiles, int clusters, int k_blocks) {
  SCOPED_TRACE(testing::Message() << tiles << " tiles, " << clusters << " clusters, " << k_blocks
                                  << " K-blocks");
  for (auto& tile : pieces_of(tiles, clusters, k_blocks)) {
    std::ranges::sort(tile, {}, &Piece::first);
    ASSERT_TRUE(tile.size() == 1 || tile.size() == 2) << tile.size();
    ASSERT_EQ(tile.front().first, 0);
    ASSERT_EQ(tile.back().last, k_blocks);
    if (tile.size() == 1) continue;
    ASSERT_EQ(tile[0].last, tile[1].first);
    ASSERT_EQ(tile[0].cluster, tile[1].cluster + 1);
    ASSERT_EQ(tile[1].step, 0);
    for (const Piece& piece : tile) ASSERT_GE(piece.last - piece.first, kShortest);
  }
}

TEST(StreamOrder, EveryKBlockOnceAndEveryTileInAtMostTwoPieces) {
  for (const int clusters : {1, 2, 3, 7, 66, 132}) {
    for (const int k_blocks : {1, 15, 16, 17, 56, 64, 143}) {
      for (int tiles = 1; tiles < 4 * clusters + 3; tiles += tiles < 20 ? 1 : 7)
        expect_pieces(tiles, clusters, k_blocks);
    }
  }
}

TEST(StreamOrder, ClustersEndWithinAFewKBlocksOfEachOther) {
  for (const int tiles : {136, 200, 374, 731, 800}) {
    constexpr int kClusters = 132;
    constexpr int kBlocks = 56;
    std::vector<int> work(kClusters);
    for (const auto& tile : pieces_of(tiles, kClusters, kBlocks))
      for (const Piece& piece : tile)
        work.at(static_cast<std::size_t>(piece.cluster)) += piece.last - piece.first;
    const auto [least, most] = std::ranges::minmax(work);
    EXPECT_LE(most - least, 2 * kShortest) << tiles;
  }
}

TEST(StreamOrder, CutsOnlyWhereALastWaveLeavesEnoughIdle) {
  const auto cut = [](std::int64_t tiles, std::int64_t k_blocks) {
    return stream_order({}, tiles, tiles, 132, k_blocks).tiles;
  };
  EXPECT_EQ(cut(140, 56), 140);
  EXPECT_EQ(cut(272, 56), 140);
  EXPECT_EQ(cut(132, 56), 0) << "whole waves";
  EXPECT_EQ(cut(264, 56), 0) << "whole waves";
  EXPECT_EQ(cut(100, 56), 0) << "less than a wave";
  EXPECT_EQ(cut(140, 15), 0) << "short tiles";
  EXPECT_EQ(cut(260, 56), 0) << "too little is idle";
  EXPECT_EQ(stream_order({}, 272, 139, 132, 56).tiles, 0) << "too few may be cut";
  EXPECT_EQ(stream_order({}, 272, 140, 132, 56).tiles, 140);
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
