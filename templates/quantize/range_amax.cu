// Raises the largest finite magnitude of every block of a tensor to that of a range:
//
//   range_amax[block] = max(range_amax[block], max |x| over the range's elements of the block)
//
// The maxima are bits of fp32, which order as the magnitudes do. The caller clears them before and
// takes the maximum over the ranges afterwards, which range_cast.cu reads. Blocks are square, or
// the whole tensor.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_range_amax_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace range_amax {

using Src = quantize::Source<cfg::kSourceType>;
using quantize::Vector;
constexpr int kVectors = cfg::kTileRows;
constexpr int kWarps = cfg::kThreads / 32;
constexpr bool kSquares =
    cfg::kGranularity == quantize::k128x128 || cfg::kGranularity == quantize::k32x32;
constexpr int kBlock = cfg::kGranularity == quantize::k32x32 ? 32 : 128;
constexpr int kLanes = kBlock / Src::kElements;  // lanes of a block along a row
static_assert(cfg::kTileCols == 32 * Src::kElements, "a vector a lane");
static_assert(kBlock % cfg::kTileRows == 0, "a tile lies in one row of square blocks");
using Patch = quantize::RangePatch<Src, kVectors>;
using Maxima = quantize::RangeMaxima<cfg::kGranularity>;

__device__ __forceinline__ void raise(const quantize::Args& args, i64 row, i64 col, u32 magnitude) {
  if (magnitude == 0) return;
  const u32 bits = __float_as_uint(Src::value(magnitude));
  quantize::raise(args.range_amax + Maxima(args).index(row, col), bits);
}

}  // namespace range_amax

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace range_amax;
  wait_for_previous_kernel();
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  if (quantize::skipped(args)) return;
  quantize::Tile tile;
  if (!quantize::range_tile<kVectors, Src::kElements>(args, at.block, kWarps, tile)) return;
  const u32 lane = threadIdx.x % 32;
  const Patch patch(args, tile);
  Vector x[kVectors];
  patch.load(args, x);
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);

  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  top = kSquares ? reduce::lanes_max<kLanes>(top) : __reduce_max_sync(0xffffffffu, top);
  if (lane % (kSquares ? kLanes : 32) == 0) raise(args, patch.row, patch.col, top);
  if (nonfinite) quantize::count_nonfinite(args, patch.nonfinite<0>(args));
}
