// The parts of warp_tile.cu: the elements of a tile that each thread holds.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/default_prologue.cuh"
#endif

namespace warp_tile {

using Src = quantize::Conditional<cfg::kSideBySide, quantize::Computed,
                                  quantize::Source<cfg::kSourceType>>::Type;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using quantize::Vector;

constexpr bool kOneScale = cfg::kGranularity == quantize::kPerTensor;
// The first pass waited for all work before it, so x may be loaded before the first pass ends.
constexpr bool kAfterFirstPass = kOneScale && !cfg::kDelayed;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr int kBlock = kLong ? 128 : 32;               // elements of a scale, unless one serves all
constexpr int kTouching = cfg::kSideBySide ? 2 : 1;    // vectors of a lane that touch: a piece
constexpr int kLaneCols = Src::kElements * kTouching;  // columns of a piece
constexpr int kLanes = kBlock / kLaneCols;             // lanes that share a scale
constexpr int kLongBlock = 128;
constexpr int kLongLanes = kLongBlock / kLaneCols;
constexpr int kWarpCols = 32 * kLaneCols;            // columns of a warp's row
constexpr int kPieces = cfg::kTileCols / kWarpCols;  // pieces of a lane along a row or both halves
constexpr int kOwned = cfg::kStepRows * kPieces;     // pieces of a lane in a step
constexpr int kGroups = kPieces * kTouching;         // vectors of a lane along a row
constexpr int kVectors = cfg::kStepRows * kGroups;   // vectors of a lane in a step
constexpr int kWarps = cfg::kThreads / 32;

static_assert(kPieces * kWarpCols == cfg::kTileCols, "a tile is whole rows of a warp");
static_assert(!cfg::kSideBySide || kPieces == (cfg::kOfHalves ? 2 : 1),
              "rows that stream have one piece, or one of each half");
static_assert(!cfg::kOfHalves || cfg::kSideBySide, "halves are of rows that stream");
static_assert(cfg::kTileRows % cfg::kStepRows == 0, "a tile is whole steps");
static_assert(cfg::kThreads % 32 == 0, "a block is whole warps");

using Groups = quantize::Walk<cfg::kGroupWalk>;
using View = Groups::View;
using Patch =
    quantize::Conditional<cfg::kOfHalves, quantize::PatchOfHalves<Src, kVectors>,
                          quantize::Patch<Src, kVectors, kGroups, kWarpCols, 1, kTouching>>::Type;
using Input = cfg::Input<Patch>;
using Output = quantize::RowOutput<Patch>;

// A computed row that comes straight to the registers: none is on its way while it is worked on.
// Where both expressions are computed together, a row has two pieces; behind a first pass, its
// maximum is asked for first.
constexpr bool kComputedRow = cfg::kSideBySide && cfg::kTileRows == 1 && !cfg::kOfHalves &&
                              !Input::kLooksUp && !kAfterFirstPass;

// A tile of one step is placed before the wait for the kernels before, so that the division and the
// addresses overlap their end. Where groups are is read from memory.
constexpr bool kPlacedBeforeWait = cfg::kGroupWalk == 0 && (!Input::kComputed || kComputedRow);

__device__ __forceinline__ float encode_scale_of(u32 magnitude) {
  return Rule::encode_scale(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}

}  // namespace warp_tile
