// The largest finite magnitude of each group of rows, for one scale a group:
//
//   maxima[g] = max |x| over the rows of group g, as bits of the input type
//
// The host clears them before. A warp takes kAmaxRows rows, tile by tile (first_pass.cuh), from the
// last to the first (tensor_amax.cu says why), and a block raises the maximum of a group once,
// where its warps find more than what was known when they began. Maxima do not depend on the order
// of arrival.
//
// Ladder, 32 groups of 16384x7168 bf16, with the cast behind it, one H200, us (the stream 133.4):
//   an atomic a warp for each 8 rows (all begin knowing nothing)  -    204 to 209  dropped
//   one for 64 rows                                               145  146.8       was this file
//   from the last to the first                                    144  144.1       was this file
//   one for 32 / 16 rows, less of a tail                          140  148 / 165   dropped
//   one a block, of warps of 64 / 32 rows                         141  140.9/140.6 this file: 32
//   16 / 8 rows                                                   -    143 / 147   dropped
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
// Thread blocks, where 132 SMs hold 264 or 396 at once. Of no more than a wave's the cast gains
// nothing from starting early: tensor_amax.cu lost 0.1 us, and this bound is chosen by analogy.
constexpr u32 kMoreThanAWave = 512;

// Of a warp: the group it is of, none below 0, and its maximum where that was not known.
struct Found {
  int group;
  u32 raised;
};

__device__ __forceinline__ Found find(const quantize::Args& whole, u64 index) {
  const u64 across = static_cast<u64>(whole.cols + Pass::kCols - 1) / Pass::kCols;
  const u64 tiles = across * static_cast<u64>(Groups::slots<kRows>(whole));
  if (index >= tiles) return {-1, 0};
  quantize::Tile tile = quantize::tile_at(tiles - 1 - index, across);
  auto&& args = Groups::enter<kRows>(whole, tile.row);
  i64 row = quantize::first_row(args) + tile.row * kRows;
  if (row >= args.rows) return {-1, 0};
  // Looked at before the loads of x, which take as long: what it misses costs an atomic.
  const u32 known = *static_cast<volatile const u32*>(args.maxima + args.group);
  const i64 end = row + kRows < args.rows ? row + kRows : args.rows;
  u32 top = 0;
#pragma unroll 1
  for (; row < end; row += kVectors) {
    top = reduce::max(top, Pass::largest<Input>(args, row, tile.col));
  }
  top = __reduce_max_sync(0xffffffffu, top);
  return {static_cast<int>(args.group), top > known ? top : 0};
}

}  // namespace group_amax

extern "C" __global__ void __launch_bounds__(cfg::kAmaxThreads, cfg::kAmaxBlocksPerSm)
    OCTILE_AMAX_NAME(const __grid_constant__ quantize::Args whole) {
  using namespace group_amax;
  wait_for_previous_kernel();
  if (quantize::skipped(whole)) return;
  if (gridDim.x >= kMoreThanAWave) let_next_kernel_start();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Found found = find(whole, static_cast<u64>(blockIdx.x) * kWarps + warp);

  // Most warps of a block are of one group: the first of each raises its maximum.
  __shared__ Found of_warps[kWarps];
  if (threadIdx.x % 32 == 0) of_warps[warp] = found;
  __syncthreads();
  if (threadIdx.x >= kWarps) return;
  const int group = of_warps[threadIdx.x].group;
  bool first = group >= 0;
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (of_warps[i].group != group) continue;
    if (i < static_cast<int>(threadIdx.x)) first = false;
    top = reduce::max(top, of_warps[i].raised);
  }
  if (first && top > 0) atomicMax(whole.maxima + group, top);
}
