// The largest finite magnitude of each group of rows, for one scale a group:
//
//   maxima[g] = max |x| over the rows of group g, as bits of the input type
//
// The host clears them before. A warp takes kAmaxRows rows, tile by tile (first_pass.cuh), and,
// where it finds more than what was known when it began, an atomic. Maxima do not depend on the
// order of arrival.
//
// Ladder, 32 groups of 16384x7168 bf16, with the cast behind it, one H200, us:
//   an atomic for each 8 rows (all of a group's warps begin knowing nothing)   204 to 209
//   one for 64 rows, predicted 145                                             146
//   from the last to the first (tensor_amax.cu), 146.8 before                  144.9
#ifndef OCTILE_EMITTED
#define OCTILE_AMAX_NAME octile_quantize_group_amax_default
#define OCTILE_DEFAULT_GRANULARITY 1
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#define OCTILE_DEFAULT_GROUP_WALK 1
#include "quantize/default_prologue.cuh"
#endif

namespace group_amax {

using Src = quantize::Source<cfg::kSourceType>;
using Groups = quantize::Walk<cfg::kGroupWalk>;
using Pass = quantize::FirstPass<Src, cfg::kAmaxThreads>;
using Input = cfg::Input<Pass::Patch>;
constexpr int kVectors = Pass::kVectors, kWarps = Pass::kWarps;
constexpr int kRows = cfg::kAmaxRows;
static_assert(kRows % kVectors == 0, "a warp's rows are whole steps");

}  // namespace group_amax

extern "C" __global__ void __launch_bounds__(cfg::kAmaxThreads, cfg::kAmaxBlocksPerSm)
    OCTILE_AMAX_NAME(const __grid_constant__ quantize::Args whole) {
  using namespace group_amax;
  wait_for_previous_kernel();
  if (quantize::skipped(whole)) return;
  const u64 across = static_cast<u64>(whole.cols + Pass::kCols - 1) / Pass::kCols;
  const u64 tiles = across * static_cast<u64>(Groups::slots<kRows>(whole));
  const u64 index = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= tiles) return;
  quantize::Tile tile = quantize::tile_at(tiles - 1 - index, across);
  auto&& args = Groups::enter<kRows>(whole, tile.row);
  i64 row = quantize::first_row(args) + tile.row * kRows;
  if (row >= args.rows) return;
  // Looked at before the loads of x, which take as long: what it misses costs an atomic.
  const u32 known = *static_cast<volatile const u32*>(args.maxima + args.group);
  const i64 end = row + kRows < args.rows ? row + kRows : args.rows;
  u32 top = 0;
#pragma unroll 1
  for (; row < end; row += kVectors) {
    top = reduce::max(top, Pass::largest<Input>(args, row, tile.col));
  }
  top = __reduce_max_sync(0xffffffffu, top);
  if (threadIdx.x % 32 == 0 && top > known) atomicMax(args.maxima + args.group, top);
}
