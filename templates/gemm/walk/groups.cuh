// Walk policy: the tiles of all groups, one group after the other. dense.cuh has the contract.
//
// Groups are known only on the device. Before the roles part, one warp writes a table into shared
// memory: for each group, and for the end of the last, two words:
//   first_tile(g)   tiles of the groups before g
//   begin(g)        what Groups makes of the caller's offsets or counts
// Offsets that descend or lie outside the rows are clamped, so that no tile leaves the tensors.
//
// Contract of Groups:
//   kOfK            whether a group has K-blocks and not rows
//   kShiftsScales   whether a tile may begin at a row that is not a multiple of four
//   rows(e, g)      rows of A of group g as the caller's array says; with kOfK, its tokens
//   begin(e, g, before)  what the table keeps as begin(g), if the groups before g have `before`
//                   K-blocks
//   first_row(table, e, g)   first row of A of the group, and
//   end_row(table, e, g)     the row behind its last
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/producer.cuh"
#include "lib/tma_3d.cuh"
#endif

namespace gemm::walk {

struct GroupTable {
  u32 address;
  __device__ __forceinline__ explicit GroupTable(const SharedMemory& smem)
      : address(smem.base + cfg::kGroupOffset) {}
  __device__ __forceinline__ int first_tile(int group) const {
    return load_shared_i32(address + group * 8);
  }
  __device__ __forceinline__ int begin(int group) const {
    return load_shared_i32(address + group * 8 + 4);
  }
  __device__ __forceinline__ void set(int group, int first_tile, int begin) const {
    store_shared_i32(address + group * 8, first_tile);
    store_shared_i32(address + group * 8 + 4, begin);
  }
};

// Groups follow one another in the rows of A and D; the caller gives offsets.
struct ContiguousRows {
  enum : bool { kOfK = false, kShiftsScales = true };
  __device__ static __forceinline__ int rows(const Extents& e, int g) {
    return max(begin(e, g + 1, 0) - begin(e, g, 0), 0);
  }
  __device__ static __forceinline__ int begin(const Extents& e, int g, int) {
    return min(max(load_global_i32(e.group_rows + g), 0), e.m);
  }
  __device__ static __forceinline__ int first_row(const GroupTable& table, const Extents&, int g) {
    return table.begin(g);
  }
  __device__ static __forceinline__ int end_row(const GroupTable& table, const Extents&, int g) {
    return table.begin(g + 1);
  }
};

// Every group has room for e.m rows; the caller gives how many exist.
struct MaskedRows {
  enum : bool { kOfK = false, kShiftsScales = false };
  __device__ static __forceinline__ int rows(const Extents& e, int g) { return begin(e, g, 0); }
  __device__ static __forceinline__ int begin(const Extents& e, int g, int) {
    return g < e.groups ? min(max(load_global_i32(e.group_rows + g), 0), e.m) : 0;
  }
  __device__ static __forceinline__ int first_row(const GroupTable&, const Extents& e, int g) {
    return g * e.m;
  }
  __device__ static __forceinline__ int end_row(const GroupTable& table, const Extents& e, int g) {
    return g * e.m + table.begin(g);
  }
};

// Groups follow one another in the columns of A and B, each from a multiple of 128 on; the caller
// gives the offsets of their tokens. D has a matrix for each.
struct ColumnGroups {
  enum : bool { kOfK = true, kShiftsScales = false };
  __device__ static __forceinline__ int rows(const Extents& e, int g) {
    return max(offset(e, g + 1) - offset(e, g), 0);
  }
  __device__ static __forceinline__ int begin(const Extents& e, int, int before) {
    return min(before, ceil_div(e.k, 128));
  }

 private:
  __device__ static __forceinline__ int offset(const Extents& e, int g) {
    return min(max(load_global_i32(e.group_rows + g), 0), e.tokens);
  }
};

template <typename Groups>
struct Grouped {
  enum : bool {
    kGrouped = true,
    kBatched = false,
    kShiftsScales = Groups::kShiftsScales,
    kOfK = Groups::kOfK,
    kOwnRanges = kOfK,
  };
  static_assert(cfg::kClusterN == 1 && cfg::kSplits == 1 && !kHasTail && (!kOfK || kShareSize == 1),
                "a cluster's tiles are rows of one group, and some may lie behind its end");

  // Where a role is. The copy thread has few registers, so only values that no other place has are
  // kept.
  struct Position {
    GroupTable table;
    int groups;
    int index;  // index of the next tile among those of all groups
    int group;  // that has it; `groups` if there is none

    __device__ __forceinline__ bool valid() const { return group < groups; }
    __device__ __forceinline__ bool is_tail() const { return false; }
    __device__ __forceinline__ void advance() {
      index += static_cast<int>(gridDim.x) / kClusterSize;
      find();
    }
    // Moves to the group that has the tile.
    __device__ __forceinline__ void find() {
      int low = group, high = groups;
      while (low < high) {
        // The group itself is looked at first: it mostly has the next tile too.
        const int middle = low == group ? low : (low + high) / 2;
        if (table.first_tile(middle + 1) > index) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      group = low;
    }
  };

  // All lanes of one warp: writes the table.
  __device__ static __forceinline__ void write_table(const SharedMemory& smem, const Extents& e) {
    const GroupTable table(smem);
    const int lane = static_cast<int>(threadIdx.x % 32);
    int tiles = 0, blocks = 0;  // counts in the groups before
    for (int first = 0; first <= e.groups; first += 32) {
      const int group = first + lane;
      const int rows = group < e.groups ? Groups::rows(e, group) : 0;
      const int own_tiles = group < e.groups ? tiles_m(e, rows) * tiles_n(e) : 0;
      const int own_blocks = ceil_div(rows, 128);
      const int tiles_to = tiles + sum_of_lanes_to(own_tiles, lane);
      const int blocks_to = blocks + sum_of_lanes_to(own_blocks, lane);
      if (group <= e.groups) {
        table.set(group, tiles_to - own_tiles, Groups::begin(e, group, blocks_to - own_blocks));
      }
      tiles = __shfl_sync(0xffffffffu, tiles_to, 31);
      blocks = __shfl_sync(0xffffffffu, blocks_to, 31);
    }
  }

  __device__ static __forceinline__ Position first(const Extents& e, const SharedMemory& smem) {
    Position position{GroupTable(smem), e.groups, static_cast<int>(blockIdx.x) / kClusterSize, 0};
    position.find();
    return position;
  }

  // A band's tiles lie next to one another, as in TileScheduler, within the group.
  __device__ static __forceinline__ void origin(const Position& position, const Extents& e,
                                                int rank, Tile& tile) {
    tile.group = position.group;
    int first_row = 0, rows = e.m;
    if constexpr (!kOfK) {
      first_row = Groups::first_row(position.table, e, position.group);
      tile.end = Groups::end_row(position.table, e, position.group);
      tile.last = tile.end;
      if constexpr (kShiftsScales) tile.last = max(position.table.begin(position.groups), tile.end);
      rows = tile.end - first_row;
    }
    int tile_m, tile_n;
    const int index = position.index - position.table.first_tile(position.group);
    coordinates(index, tiles_m(e, rows), tiles_n(e), tile_m, tile_n);
    tile.n0 = tile_n * cfg::kBlockN;
    tile.own_row = first_row + (tile_m * cfg::kClusterM + rank) * cfg::kBlockM;
    tile.m0 = tile.own_row;
    // The last tile of all rows ends with them, as in dense.cuh.
    if constexpr (kOfK) tile.m0 = min(tile.m0, max(ceil_div(rows, 4) * 4 - cfg::kBlockM, 0));
  }

  __device__ static __forceinline__ KRange k_range(const Extents& e, int) {
    return {0, ceil_div(e.k, 128)};
  }
  __device__ static __forceinline__ KRange k_range_of(const Position& position) {
    return {position.table.begin(position.group), position.table.begin(position.group + 1)};
  }

  // Rows of A that a box has, and those whose scales are copied.
  __device__ static __forceinline__ int rows(const Extents& e) {
    return kOfK ? min(cfg::kBlockM, ceil_div(e.m, 4) * 4) : cfg::kBlockM;
  }
  __device__ static __forceinline__ int scaled_rows(const Extents& e, const Tile& tile) {
    if constexpr (kOfK) return rows(e);
    constexpr int kMost = cfg::kBlockM + (kShiftsScales ? 4 : 0);
    return max(min(kMost, ceil_div(tile.last - first_scaled_row(tile), 4) * 4), 0);
  }

  __device__ static __forceinline__ const float* scales_of_a(const Source& from, const Extents& e,
                                                             const Tile& tile, int words) {
    if constexpr (kOfK) return from.scale_a + tile.m0;
    if constexpr (kShiftsScales) return from.scale_a + first_scaled_row(tile);
    return from.scale_a + tile.group * words * from.scale_a_ld + (tile.m0 - tile.group * e.m);
  }
  // Returns the source of B's scales if they are of 128x128 blocks.
  __device__ static __forceinline__ Source source_of_b(const Source& from, const Extents& e,
                                                       const Tile& tile) {
    Source of_group = from;
    of_group.scale_b += tile.group * ceil_div(e.n, 128) * from.scale_b_ld;
    return of_group;
  }
  // Scales that serve all of K: one for each group (kOfTensors), or one for each row of A and of B.
  // Those of a masked group's rows begin at a multiple of four.
  template <bool kOfTensors>
  __device__ static __forceinline__ Source scales_of_group(const Source& from, const Extents& e,
                                                           const Tile& tile) {
    Source of_group = from;
    of_group.scale_a += kOfTensors      ? tile.group
                        : kShiftsScales ? 0
                                        : tile.group * (ceil_div(e.m, 4) * 4 - e.m);
    of_group.scale_b += kOfTensors ? tile.group : tile.group * e.n;
    return of_group;
  }
  __device__ static __forceinline__ int row_of_b(const Extents& e, const Tile& tile) {
    return kOfK ? tile.n0 : tile.group * e.n + tile.n0;
  }
  __device__ static __forceinline__ void load_a(u32 to, const TensorMap* map, const Tile& tile,
                                                int k, u32 full) {
    if constexpr (kOfK) {
      tma::load_2d(to, map, k, tile.m0, full);
    } else {
      // A cluster's tile behind the last row loads that row: TMA may fault on the addresses of a
      // box that lies wholly outside its map.
      const int end = min(tile.last, tile.m0 + static_cast<int>(cfg::kBlockM));
      const int absent =
          min(tile.m0 + static_cast<int>(cfg::kBlockM) - end, static_cast<int>(cfg::kBlockM) - 1);
      tma::load_3d(to, map, k, absent, end, full);
    }
  }

  __device__ static __forceinline__ void load_b(u32 to, const TensorMap* map, const Tile&, int k,
                                                int row, u32 full) {
    tma::load_2d(to, map, k, row, full);
  }

  // The tile in D, and where D's rows end for it.
  __device__ static __forceinline__ Tile in_d(const Extents& e, const Tile& tile) {
    Tile result = tile;
    if constexpr (kOfK) {
      result.m0 += tile.group * e.m;
      result.own_row += tile.group * e.m;
    }
    return result;
  }
  __device__ static __forceinline__ Limits limits(const Extents& e) { return {e.m, e.n}; }
  __device__ static __forceinline__ Limits limits_of(const Extents& e, const Tile& tile) {
    return {kOfK ? (tile.group + 1) * e.m : tile.end, e.n};
  }

 private:
  __device__ static __forceinline__ int tiles_m(const Extents& e, int rows) {
    return ceil_div(kOfK ? e.m : rows, cfg::kBlockM * cfg::kClusterM);
  }
  __device__ static __forceinline__ int tiles_n(const Extents& e) {
    return ceil_div(e.n, cfg::kBlockN);
  }
  // Copies of scales begin at multiples of four rows.
  __device__ static __forceinline__ int first_scaled_row(const Tile& tile) {
    return kShiftsScales ? tile.m0 & ~3 : tile.m0;
  }

  __device__ static __forceinline__ void coordinates(int tile, int tiles_m, int tiles_n,
                                                     int& tile_m, int& tile_n) {
    constexpr bool kOfColumns = cfg::kRasterOfColumns;
    const int band = tile / (cfg::kRasterBand * (kOfColumns ? tiles_m : tiles_n));
    const int first = band * cfg::kRasterBand;
    const int within = tile - first * (kOfColumns ? tiles_m : tiles_n);
    const int width = min(cfg::kRasterBand, (kOfColumns ? tiles_n : tiles_m) - first);
    const int along = within / width;
    (kOfColumns ? tile_m : tile_n) = along;
    (kOfColumns ? tile_n : tile_m) = first + within - along * width;
  }

  // Returns the sum of x over the lanes up to this one.
  __device__ static __forceinline__ int sum_of_lanes_to(int x, int lane) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, x, distance);
      if (lane >= distance) x += before;
    }
    return x;
  }
};

}  // namespace gemm::walk
