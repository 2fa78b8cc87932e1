// The largest finite magnitude of each group of rows, for one scale a group:
//
//   maxima[g] = max |x| over the rows of group g, as bits of the input type
//
// The host clears the maxima before. A warp takes kAmaxRows rows, tile by tile (first_pass.cuh),
// from the last tile to the first (tensor_amax.cu says why). A block raises the maximum of a group
// at most once, if its warps find more than was known when they began: an atomic of every warp
// would cost more than the tail of larger warps does. Maxima do not depend on the order of arrival.
// docs/experiments/quantize.md lists what was tried and measured.
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
// A count of thread blocks; 132 SMs hold 264 or 396 at once. If this kernel is a single wave, the
// cast gains nothing from starting early (measured with tensor_amax.cu).
constexpr u32 kMoreThanAWave = 512;

// A warp's result: its group (-1: it has none), and the maximum if that exceeds the known one.
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
  // It is read before x, whose loads take as long. A stale value costs an atomic.
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

  // Most warps of a block share a group. The first warp of each group raises its maximum.
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
