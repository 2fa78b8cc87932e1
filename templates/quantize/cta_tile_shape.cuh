// The parts of cta_tile.cu: the elements that each thread holds, and a thread block's shared
// memory.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/default_prologue.cuh"
#endif

namespace cta_tile {

using Src = cfg::Values<quantize::Source<cfg::kSourceType>>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using Runs = quantize::ScaleRuns<Rule, cfg::kSwizzled>;

// ---- scales -------------------------------------------------------------------------------------

constexpr bool kPerTensor = cfg::kGranularity == quantize::kPerTensor;
constexpr bool kPerRow = cfg::kGranularity == quantize::kPerRow;
constexpr bool kStrips =
    cfg::kGranularity == quantize::k1x128 || cfg::kGranularity == quantize::k1x32;
constexpr bool kSquares =
    cfg::kGranularity == quantize::k128x128 || cfg::kGranularity == quantize::k32x32;
constexpr bool kShort =
    cfg::kGranularity == quantize::k1x32 || cfg::kGranularity == quantize::k32x32;
constexpr int kBlock = kShort ? 32 : 128;  // elements along a strip's or a square's scale

// The first pass waited for all work before it, so x may be loaded before the first pass ends.
constexpr bool kAfterFirstPass = kPerRow || (kPerTensor && !cfg::kDelayed);

// ---- threads ------------------------------------------------------------------------------------

constexpr int kLanes = cfg::kTileCols / Src::kElements;  // threads along a row of the tile
constexpr int kPatchRows = cfg::kThreads / kLanes;       // patches along a column of the tile
constexpr int kVectors = cfg::kTileRows / kPatchRows;    // loads of a thread
constexpr int kWarps = cfg::kThreads / 32;
constexpr int kWarpRows = cfg::kTileRows / kWarps;  // consecutive rows of a warp
// Thread blocks side by side that share a scale: each block reads every column the scale covers and
// casts only its own columns.
constexpr bool kAcrossRows = kSquares || (kStrips && cfg::kRowwise);
constexpr int kSharers = kAcrossRows && cfg::kTileCols < kBlock ? kBlock / cfg::kTileCols : 1;
constexpr bool kInterleaved = !cfg::kTransposed && !kShort && !cfg::kBiasGradient;

// A tile of fewer rows is held at once, and the rest of its block of 128 rows afterwards
// (few_rows.cu).
constexpr bool kFewRows = cfg::kTileRows < kBlock;

static_assert(128 % cfg::kTileCols == 0 && (kFewRows || cfg::kTileRows % 128 == 0),
              "a tile, or a tile and its neighbours, holds whole blocks");
static_assert(kVectors * kPatchRows == cfg::kTileRows, "a tile is whole patches");
static_assert(kInterleaved || !(kStrips || kSquares) || kWarpRows <= kBlock,
              "the rows of a warp share a block");
static_assert(!kInterleaved || cfg::kTileRows <= 128, "interleaved rows share one block");

using Groups = quantize::Walk<cfg::kGroupWalk>;
using View = Groups::template BlockView<cfg::kThreads>;
using Patch = quantize::Patch<Src, kVectors, 1, cfg::kTileCols, kInterleaved ? kPatchRows : 1>;
using Input = cfg::Input<Patch>;
using Output = quantize::RowOutput<Patch>;

// A tile of the tensor itself is placed before the wait for the kernels before, so that the
// division and the addresses overlap their end. The places of groups are read from memory. If a
// first pass ran, x itself is loaded before the wait.
constexpr bool kPlacedBeforeWait = cfg::kGroupWalk == 0 && !Input::kComputed && !kAfterFirstPass;
using Bias = quantize::ColumnSums<Patch, cfg::kTileCols>;

// ---- copies -------------------------------------------------------------------------------------

// The two copies of a tile may have a thread block each (cfg::kCopiesApart). The first of the two
// blocks writes the row-wise copy, the second the transposed one.
constexpr u32 kBlocksOfTile = cfg::kCopiesApart ? 2 : 1;
static_assert(!cfg::kCopiesApart || (cfg::kRowwise && cfg::kTransposed && !cfg::kOrdersScales),
              "two copies, none of whose scales wait for the other block's");

__device__ __forceinline__ u32 tile_number() { return blockIdx.x / kBlocksOfTile; }
__device__ __forceinline__ bool writes_rows() {
  return cfg::kRowwise && (!cfg::kCopiesApart || blockIdx.x % 2 == 0);
}
__device__ __forceinline__ bool writes_columns() {
  return cfg::kTransposed && (!cfg::kCopiesApart || blockIdx.x % 2 != 0);
}

// Where a thread's patch lies in the tile.
struct Place {
  int lane, warp, patch_row, row, column, block_down, block_across;

  explicit __device__ __forceinline__ Place(int thread)
      : lane(thread % 32),
        warp(thread / 32),
        patch_row(thread / kLanes),
        row(kInterleaved ? patch_row : patch_row * kVectors),
        column(thread % kLanes * Src::kElements),
        block_down(kInterleaved ? 0 : row / kBlock),
        block_across(column / kBlock) {}
};

// ---- shared memory ------------------------------------------------------------------------------

constexpr int kBlocksAcross = cfg::kTileCols < kBlock ? 1 : cfg::kTileCols / kBlock;
constexpr int kBlocksDown = kFewRows ? 1 : cfg::kTileRows / kBlock;

// The maxima of columns are those of a warp. If they are words, they are those of the lanes that
// hold the same rows.
constexpr bool kWordTops = Src::kElementsAWord == 1;
constexpr int kColumnParts = kWordTops ? kPatchRows : kWarps;
constexpr int kBlockParts = kColumnParts / kBlocksDown;  // parts of a block

// The maxima that the warps exchange.
struct Maxima {
  u32 squares[kSquares ? kWarps : 1][kBlocksAcross];
  Src::Tops columns[kStrips && cfg::kTransposed ? kColumnParts : 1][kLanes];
};
struct SharedMaxima {  // without a transposed output nothing is staged
  Maxima maxima;
};

// The encode scales of the tile's lines, if scales are per row: of its rows, then of its columns.
constexpr int kLines = cfg::kTileRows + (cfg::kTransposed ? cfg::kTileCols : 0);
struct LineScales {
  float of[kPerRow ? kLines : 1];
};

// The scales that are stored by whole sectors, along the rows or along the columns.
using Words = quantize::ScaleWords<cfg::kOrdersScales>;

// The memory that the threads of a block share.
template <typename Memory>
struct Parts {
  Memory& shared;
  LineScales& lines;
  Words& words_of_rows;
  Words& words_of_columns;
};

__device__ __forceinline__ float encode_scale_of(u32 magnitude) {
  return Rule::encode_scale(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}
__device__ __forceinline__ i64 blocks_of(i64 extent) { return (extent + kBlock - 1) / kBlock; }

}  // namespace cta_tile
