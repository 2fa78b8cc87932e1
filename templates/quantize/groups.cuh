// Groups of rows (the tokens of experts): which group a tile belongs to, and which part of the
// tensor that is.
//
// Contiguous groups follow one another: group g has rows offsets[g] .. offsets[g + 1]. No tile
// spans two groups, so a group of n rows takes ceil(n / kTileRows) tiles. No sum over the groups
// before is needed to place them. Group g owns the slots from
//
//   slot(g) = offsets[g] / kTileRows + g
//
// on, at least as many as it has tiles. A thread block whose slot lies beyond its group's last tile
// returns at once. slot() rises with g, so 32 probes at a time find a slot's group: one step for 32
// groups, two for 1024.
//
// Masked groups lie `rows` rows apart; the first counts[g] of them exist.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/scale.cuh"
#endif

namespace quantize {

// How a kernel's tiles meet the groups: GroupWalk on the host.
constexpr int kGroupByGroup = 1;  // contiguous, one group after the other
constexpr int kMaskedGroups = 2;
constexpr int kGroupsAsOne = 3;  // contiguous, if neither scales nor places depend on the group

// The arguments as one tile sees them. `rows` is the row of x at which its group ends, because
// loads and codes count the rows of x.
struct GroupArgs : Args {
  i64 group;
  i64 first;         // row of x where the group begins
  i64 scale_origin;  // row of x whose row-wise scale is the first of the array `scale`
  i64 scale_rows;    // rows that array covers
  i64 start;         // column where the group begins in the transposed copy
  bool last;         // no row comes after the group's
};

__device__ __forceinline__ i64 first_row(const GroupArgs& a) { return a.first; }
__device__ __forceinline__ i64 scale_origin(const GroupArgs& a) { return a.scale_origin; }
__device__ __forceinline__ i64 scale_rows(const GroupArgs& a) { return a.scale_rows; }
__device__ __forceinline__ i64 start_column(const GroupArgs& a) { return a.start; }
__device__ __forceinline__ bool is_last(const GroupArgs& a) { return a.last; }
__device__ __forceinline__ i64 padded_columns(const GroupArgs& a) {
  return (a.rows - a.first + 127) & ~i64{127};
}
__device__ __forceinline__ u32 known_magnitude(const GroupArgs& a) {
  return memory::glance_4(a.maxima + a.group);
}

__device__ __forceinline__ i64 count_at(const int* counts, i64 i) {
  return static_cast<int>(memory::load_4(counts + i));
}

// Returns the rows of all contiguous groups, at most those of x.
__device__ __forceinline__ i64 contiguous_rows(const Args& args) {
  const i64 all = count_at(args.groups_at, args.groups);
  return all < args.rows ? all : args.rows;
}

template <int kTileRows>
__device__ __forceinline__ int first_slot(int begin, int group) {
  return static_cast<int>(static_cast<u32>(begin) / kTileRows) + group;
}

// A contiguous group and its rows of x.
struct GroupRows {
  int group, begin, end;
};

// Returns the last group whose first slot is at most `slot`. All 32 lanes call it. The last 33
// offsets it reads contain the group's rows, so one load is enough for 32 groups.
template <int kTileRows>
__device__ __forceinline__ GroupRows group_of_slot(const Args& args, int slot) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int groups = static_cast<int>(args.groups);
  int first = 0, count = groups;
#pragma unroll 1
  while (true) {
    const int step = (count + 31) / 32;
    const int group = first + lane * step;
    const int begin =
        group <= groups ? static_cast<int>(memory::load_4(args.groups_at + group)) : 0;
    const bool reached = lane * step < count && first_slot<kTileRows>(begin, group) <= slot;
    const int passed =
        static_cast<int>(__reduce_max_sync(0xffffffffu, reached ? static_cast<u32>(lane) : 0));
    first += passed * step;
    if (step > 1) {
      count = count - passed * step < step ? count - passed * step : step;
      continue;
    }
    GroupRows rows = {first, __shfl_sync(0xffffffffu, begin, passed),
                      __shfl_sync(0xffffffffu, begin, (passed + 1) % 32)};
    if (passed == 31) rows.end = static_cast<int>(memory::load_4(args.groups_at + first + 1));
    return rows;
  }
}

// The same search by a thread block of one tile, whose threads look at one group each. One thread
// finds the block's group. All count the blocks of 128 rows in the groups before, because a group's
// columns of the transposed copy begin at a multiple of 128.
struct alignas(16) FoundGroup {
  int group, begin, end;
  int all;  // the rows of all groups
};
template <int kThreads>
struct BlockSearch {
  FoundGroup found;
  alignas(16) u32 before[kThreads / 32];  // blocks of 128 rows that each warp counted

  template <int kTileRows>
  __device__ __forceinline__ void run(const Args& args, int slot) {
    const int groups = static_cast<int>(args.groups);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int all = static_cast<int>(contiguous_rows(args));
    u32 blocks = 0;
#pragma unroll 1
    for (int first = warp * 32; first < groups; first += kThreads) {
      const int g = first + static_cast<int>(threadIdx.x) % 32;
      if (g >= groups) break;
      const int begin = static_cast<int>(memory::load_4(args.groups_at + g));
      const int end = static_cast<int>(memory::load_4(args.groups_at + g + 1));
      const bool reached = g == 0 || first_slot<kTileRows>(begin, g) <= slot;
      const bool passed = g + 1 < groups && first_slot<kTileRows>(end, g + 1) <= slot;
      if (passed) {
        blocks += static_cast<u32>(end - begin + 127) / 128;
      } else if (reached) {
        found = {g, begin, end < all ? end : all, all};
      }
    }
    blocks = __reduce_add_sync(0xffffffffu, blocks);
    if (threadIdx.x % 32 == 0) before[warp] = blocks;
    __syncthreads();
  }
  // Returns the blocks of 128 rows in the groups before. Call it after run().
  __device__ __forceinline__ u32 blocks_before() const {
    u32 blocks = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) blocks += before[w];
    return blocks;
  }
};

// The one search of a thread block.
template <int kThreads>
__device__ __forceinline__ BlockSearch<kThreads>& block_search() {
  __shared__ BlockSearch<kThreads> search;
  return search;
}

// The arguments as a thread block's tile of a contiguous group sees them. Values that are used once
// stay in shared memory, where the search left it, so that it takes no registers.
template <int kThreads>
struct BlockGroup : Args {};
template <int kThreads>
__device__ __forceinline__ i64 first_row(const BlockGroup<kThreads>&) {
  return block_search<kThreads>().found.begin;
}
template <int kThreads>
__device__ __forceinline__ i64 end_row(const BlockGroup<kThreads>&) {
  return block_search<kThreads>().found.end;
}
template <int kThreads>
__device__ __forceinline__ i64 scale_origin(const BlockGroup<kThreads>&) {
  return 0;
}
template <int kThreads>
__device__ __forceinline__ i64 scale_rows(const BlockGroup<kThreads>&) {
  return block_search<kThreads>().found.all;
}
template <int kThreads>
__device__ __forceinline__ i64 start_column(const BlockGroup<kThreads>&) {
  return i64{128} * block_search<kThreads>().blocks_before();
}
template <int kThreads>
__device__ __forceinline__ bool is_last(const BlockGroup<kThreads>&) {
  const FoundGroup& found = block_search<kThreads>().found;
  return found.end == found.all;
}
template <int kThreads>
__device__ __forceinline__ i64 padded_columns(const BlockGroup<kThreads>&) {
  const FoundGroup& found = block_search<kThreads>().found;
  return (found.end - found.begin + 127) & ~127;
}
template <int kThreads>
__device__ __forceinline__ u32 known_magnitude(const BlockGroup<kThreads>& a) {
  return memory::glance_4(a.maxima + block_search<kThreads>().found.group);
}

// Gives the arguments what one group has for itself: its scale if each group has one, its given
// scale and the record of its amax.
__device__ __forceinline__ void enter_group(Args& a, i64 group) {
  a.scale = static_cast<char*>(a.scale) + group * a.scale_group_bytes;
  a.scale_transposed = static_cast<char*>(a.scale_transposed) + group * a.scale_group_bytes;
  if (a.encode_scale != nullptr) a.encode_scale += group;
  if (a.amax != nullptr) a.amax += group;
}
__device__ __forceinline__ GroupArgs of_group(const Args& args, i64 group) {
  GroupArgs a = {args};
  enter_group(a, group);
  a.group = group;
  a.start = 0;
  return a;
}

// enter() returns the arguments of the tile in `slot` and replaces `slot` by the tile's number
// within its group. Beyond a group's last tile no row is left.
template <>
struct Walk<kGroupByGroup> {
  using View = GroupArgs;
  template <int kThreads>
  using BlockView = BlockGroup<kThreads>;
  static constexpr bool kMasked = false;
  template <int kTileRows>
  static __device__ __forceinline__ i64 slots(const Args& args) {
    return args.rows / kTileRows + args.groups;
  }
  template <int kTileRows>
  static __device__ __forceinline__ GroupArgs enter(const Args& args, i64& slot) {
    const int all = static_cast<int>(contiguous_rows(args));
    const GroupRows found = group_of_slot<kTileRows>(args, static_cast<int>(slot));
    GroupArgs a = of_group(args, found.group);
    a.first = found.begin;
    slot -= first_slot<kTileRows>(found.begin, found.group);
    a.rows = found.end < all ? found.end : all;
    a.scale_origin = 0;
    a.scale_rows = all;
    a.last = a.rows == all;
    return a;
  }
  // enter_block() is enter() by a whole thread block. kOneAGroup: each group has one scale.
  template <int kTileRows, bool kOneAGroup, int kThreads>
  static __device__ __forceinline__ BlockGroup<kThreads> enter_block(const Args& args, i64& slot) {
    BlockSearch<kThreads>& search = block_search<kThreads>();
    search.template run<kTileRows>(args, static_cast<int>(slot));
    BlockGroup<kThreads> a = {args};
    if constexpr (kOneAGroup) enter_group(a, search.found.group);
    slot -= first_slot<kTileRows>(search.found.begin, search.found.group);
    return a;
  }
};

// Returns how many rows of a masked group exist: its count, limited to 0 .. args.rows.
__device__ __forceinline__ i64 masked_rows(const Args& args, i64 group) {
  const i64 count = count_at(args.groups_at, group);
  return count < 0 ? 0 : count < args.rows ? count : args.rows;
}

// Returns the arguments of a masked group of which `rows` rows exist.
__device__ __forceinline__ GroupArgs masked_group(const Args& args, i64 group, i64 rows) {
  GroupArgs a = of_group(args, group);
  a.first = group * args.rows;
  a.scale_origin = a.first;
  a.scale_rows = rows;
  a.rows = a.first + rows;
  a.last = true;
  return a;
}

// The tiles of kRows rows that exist in masked groups, numbered from 0 without a gap. All lanes of
// a warp ask for them in rising order; each lane looks at one group.
template <int kRows>
class MaskedTiles {
 public:
  explicit __device__ __forceinline__ MaskedTiles(const Args& args) { look(args); }

  // Sets `a` to the arguments of tile `index`'s group and `index` to the tile's number within it.
  // Returns false if there are fewer tiles.
  __device__ __forceinline__ bool enter(const Args& args, u32& index, GroupArgs& a) {
    u32 all = __shfl_sync(0xffffffffu, upto_, 31);
#pragma unroll 1
    while (index - before_ >= all) {
      before_ += all;
      first_ += 32;
      if (first_ >= static_cast<int>(args.groups)) return false;
      look(args);
      all = __shfl_sync(0xffffffffu, upto_, 31);
    }
    index -= before_;
    const u32 passed = __reduce_add_sync(0xffffffffu, upto_ <= index ? 1u : 0u);
    const u32 upto = __shfl_sync(0xffffffffu, upto_, static_cast<int>(passed));
    const u32 rows = __shfl_sync(0xffffffffu, rows_, static_cast<int>(passed));
    index -= upto - (rows + kRows - 1) / kRows;
    a = masked_group(args, first_ + static_cast<int>(passed), static_cast<i64>(rows));
    return true;
  }

 private:
  int first_ = 0;   // the first lane's group
  u32 before_ = 0;  // tiles of the groups before that
  u32 upto_;        // tiles from there on, up to and with the lane's group
  u32 rows_;        // rows of the lane's group

  __device__ __forceinline__ void look(const Args& args) {
    const int lane = static_cast<int>(threadIdx.x % 32), group = first_ + lane;
    rows_ = group < static_cast<int>(args.groups) ? static_cast<u32>(masked_rows(args, group)) : 0;
    upto_ = (rows_ + kRows - 1) / kRows;
#pragma unroll
    for (int n = 1; n < 32; n *= 2) {
      const u32 below = __shfl_sync(0xffffffffu, upto_, lane - n);
      if (lane >= n) upto_ += below;
    }
  }
};

template <>
struct Walk<kMaskedGroups> {
  using View = GroupArgs;
  template <int kThreads>
  using BlockView = GroupArgs;
  static constexpr bool kMasked = true;
  template <int kRows>
  using Tiles = MaskedTiles<kRows>;
  template <int kTileRows>
  static __device__ __forceinline__ i64 tiles(const Args& args) {
    return (args.rows + kTileRows - 1) / kTileRows;
  }
  template <int kTileRows>
  static __device__ __forceinline__ i64 slots(const Args& args) {
    return args.groups * tiles<kTileRows>(args);
  }
  template <int kTileRows>
  static __device__ __forceinline__ GroupArgs enter(const Args& args, i64& slot) {
    const Tile at = tile_at(static_cast<u64>(slot), static_cast<u64>(tiles<kTileRows>(args)));
    slot = at.col;
    return masked_group(args, at.row, masked_rows(args, at.row));
  }
  template <int kTileRows, bool kOneAGroup, int kThreads>
  static __device__ __forceinline__ GroupArgs enter_block(const Args& args, i64& slot) {
    return enter<kTileRows>(args, slot);
  }
};

template <>
struct Walk<kGroupsAsOne> : Walk<0> {
  template <int kTileRows>
  static __device__ __forceinline__ Args enter(const Args& args, i64&) {
    Args a = args;
    a.rows = contiguous_rows(args);
    return a;
  }
  template <int kTileRows, bool kOneAGroup, int kThreads>
  static __device__ __forceinline__ Args enter_block(const Args& args, i64& slot) {
    return enter<kTileRows>(args, slot);
  }
};

}  // namespace quantize
