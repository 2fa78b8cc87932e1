// Raises the largest finite magnitude of every block of a tensor to that of one shard:
//
//   shard_amax[block] = max(shard_amax[block], max |x| over the shard's elements of the block)
//
// The maxima are bits of fp32, which order as the magnitudes do. The caller clears them before and
// takes the maximum over the shards afterwards, which shard_cast.cu reads.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_shard_amax_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace shard_amax {

using Src = quantize::Source<cfg::kSourceType>;
using quantize::Vector;
constexpr int kVectors = cfg::kTileRows;
constexpr int kWarps = cfg::kThreads / 32;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr bool kShort = cfg::kGranularity == quantize::k1x32;
constexpr bool kSquares =
    cfg::kGranularity == quantize::k128x128 || cfg::kGranularity == quantize::k32x32;
constexpr int kBlock = kShort || cfg::kGranularity == quantize::k32x32 ? 32 : 128;
constexpr int kLanes = kBlock / Src::kElements;  // lanes of a block along a row
static_assert(cfg::kTileCols == 32 * Src::kElements, "a vector a lane");
static_assert(kBlock % cfg::kTileRows == 0, "a tile lies in one row of square blocks");
using Patch = quantize::ShardPatch<Src, kVectors>;
using Maxima = quantize::ShardMaxima<cfg::kGranularity>;

__device__ __forceinline__ void raise(const quantize::Args& args, i64 row, i64 col, u32 magnitude) {
  if (magnitude == 0) return;
  const u32 bits = __float_as_uint(Src::value(magnitude));
  quantize::raise(args.shard_amax + Maxima(args).index(row, col), bits);
}

}  // namespace shard_amax

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace shard_amax;
  wait_for_previous_kernel();
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  if (quantize::skipped(args)) return;
  quantize::Tile tile;
  if (!quantize::shard_tile<kVectors, Src::kElements>(args, at.block, kWarps, tile)) return;
  const u32 lane = threadIdx.x % 32;
  const Patch patch(args, tile);
  Vector x[kVectors];
  patch.load(args, x);
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);

  if constexpr (kLong) {
    const u32 top = reduce::scatter_max<kVectors, kLanes>(magnitudes, lane);
    const int owned = reduce::owned_index<kVectors, kLanes>(lane);
    if (static_cast<int>(lane) == reduce::owner_lane<kVectors, kLanes>(lane, owned)) {
      const i64 first_col = tile.col * cfg::kTileCols + lane / kLanes * 128;
      raise(args, patch.row + owned, first_col, top);
    }
  } else if constexpr (kShort) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const u32 top = reduce::lanes_max<kLanes>(magnitudes[i]);
      if (lane % kLanes == 0) raise(args, patch.row + i, patch.col, top);
    }
  } else {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
    top = kSquares ? reduce::lanes_max<kLanes>(top) : __reduce_max_sync(0xffffffffu, top);
    if (lane % (kSquares ? kLanes : 32) == 0) raise(args, patch.row, patch.col, top);
  }
  if (nonfinite) quantize::count_nonfinite(args, patch.nonfinite<0>(args));
}
