// 1x32 scales of tiles of 128 x 128, stored in two steps. A tile has four bytes of each of 128 runs
// of scales, and runs lie far apart: 128 writes, each of an eighth of a sector. L2 takes as long
// for such a write as for a whole sector. Tiles therefore write 32 bytes of a run at a time, in the
// places of other tiles' scales, and scale_order.cu puts them in order afterwards. If the stride is
// a multiple of 32 bytes, these are sectors. If it is only a multiple of 16, every other piece lies
// in two sectors, and a tile needs 24 writes instead of 128.
//
// Eight tiles side by side along the runs share 128 sectors, 32 bytes of each of their runs. Tile k
// fills sectors 16 k .. 16 k + 15 with its words, a word for each run in the order of the runs. In
// the end sector r has the words of tiles 0 .. 7 of run r:
//
//   sector      as the tiles write it          in order
//   0           tile 0, runs 0 .. 7            run 0, tiles 0 .. 7
//   1           tile 0, runs 8 .. 15           run 1, tiles 0 .. 7
//   16          tile 1, runs 0 .. 7            run 16, tiles 0 .. 7
//
// A tile stores its scales one by one if it lacks neighbours, at the end of the runs, or runs. So
// do all tiles if the array's address or stride is not a multiple of 16 bytes. The default stride
// is one for runs of 512 k - 127 .. 512 k elements: a quarter of all lengths.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/scale.cuh"
#endif

namespace quantize {

struct OrderedScales {
  static constexpr int kAlign = sizeof(Vector);
  static constexpr int kRuns = 128;   // runs of a tile
  static constexpr int kTiles = 8;    // tiles that share sectors: a group
  static constexpr int kAcross = 32;  // scales of a run that a group has; bytes
  static constexpr int kSectorsOfATile = kRuns / kTiles;
  static constexpr int kGroupsTogether = 8;  // groups that a thread block orders

  // An array of one byte a scale: `outer` runs of `inner`, `ld` from run to run.
  void* scales;
  i64 outer, inner, ld;

  __device__ __forceinline__ bool aligned() const {
    return (reinterpret_cast<u64>(scales) | static_cast<u64>(ld)) % kAlign == 0;
  }
  // Returns the whole groups of tiles along a run.
  __device__ __forceinline__ i64 groups_across() const { return inner / kAcross; }
  // Returns the thread blocks that order scales: along a run, and in all. The host launches as many
  // (order_blocks in generator/quantize/grid.cc).
  __device__ __forceinline__ i64 order_blocks_across() const {
    return (groups_across() + kGroupsTogether - 1) / kGroupsTogether;
  }
  __device__ __forceinline__ i64 order_blocks() const {
    return aligned() ? outer / kRuns * order_blocks_across() : 0;
  }

  // Returns whether the scales from (run, i) on, a tile's first, belong to a whole group.
  __device__ __forceinline__ bool holds(i64 run, i64 i) const {
    return aligned() && run + kRuns <= outer && i / kAcross < groups_across();
  }
  // Returns sector `sector` of the group of scale (run, i).
  __device__ __forceinline__ char* sector(i64 run, i64 i, int sector) const {
    return static_cast<char*>(scales) + (run + sector) * ld + i / kAcross * kAcross;
  }
  // Stores a tile's words, run by run; its first scale is (run, i). All 32 lanes call it.
  __device__ __forceinline__ void put(i64 run, i64 i, const Vector* words, int lane) const {
    const int tile = static_cast<int>(i % kAcross) / (kAcross / kTiles);
    char* const p = sector(run, i, tile * kSectorsOfATile + lane / 2);
    memory::store_16(p + lane % 2 * sizeof(Vector), words[lane]);
  }
};

// A tile's words until a warp stores them. Unless they are wanted, this is next to nothing.
template <bool kWanted>
struct ScaleWords {
  static constexpr int kVectors = kWanted ? OrderedScales::kRuns / 4 : 1;
  union {
    Vector vector[kVectors];
    u32 of_run[4 * kVectors];
    u8 scale[16 * kVectors];
  };
};

}  // namespace quantize
