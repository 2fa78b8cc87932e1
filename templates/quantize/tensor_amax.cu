// Finds the largest finite magnitude of a tensor, as one partial maximum for each thread block. The
// next kernel reduces those few words itself (tensor_magnitude in scale.cuh), so nothing has to be
// cleared before, and the order of arrival decides nothing.
//
//   maxima[block] = max |x| over the block's share, as bits of the input type
//
// Each warp takes one tile (first_pass.cuh) and goes on by kWarps * gridDim.x tiles. Tiles are
// visited from the last to the first, because the next kernel begins with data that L2 still has.
// The next kernel may start early and load x before it waits for the maxima. Evicting x or the
// codes from L2 early gains little: half of the data in L2 lies in its other partition, and the way
// there is the limit. docs/experiments/quantize.md lists what was tried and measured.
#ifndef OCTILE_EMITTED
#define OCTILE_AMAX_NAME octile_quantize_tensor_amax_default
#define OCTILE_DEFAULT_GRANULARITY 1
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace tensor_amax {

using Src = quantize::Source<cfg::kSourceType>;
using Pass = quantize::FirstPass<Src, cfg::kAmaxThreads, cfg::kAmaxRows>;
using Input = cfg::Input<Pass::Patch>;
constexpr int kVectors = Pass::kVectors, kWarps = Pass::kWarps;

}  // namespace tensor_amax

extern "C" __global__ void __launch_bounds__(cfg::kAmaxThreads, cfg::kAmaxBlocksPerSm)
    OCTILE_AMAX_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace tensor_amax;
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  wait_for_previous_kernel();
  if (quantize::skipped(args)) return;
  __shared__ u32 partials[kWarps];
  const u64 across = static_cast<u64>(args.cols + Pass::kCols - 1) / Pass::kCols;
  const u64 tiles = across * (static_cast<u64>(args.rows + kVectors - 1) / kVectors);
  // If x is computed, the next kernel computes it beside this one, which costs small tensors time.
  if (!Input::kComputed || tiles > static_cast<u64>(args.partials) * kWarps) {
    let_next_kernel_start();
  }
  u32 top = 0;
  for (u64 index = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / 32; index < tiles;
       index += static_cast<u64>(args.partials) * kWarps) {
    const quantize::Tile tile = quantize::tile_at(tiles - 1 - index, across);
    top = reduce::max(top, Pass::largest<Input>(args, tile.row * kVectors, tile.col));
  }
  top = reduce::block_max<cfg::kAmaxThreads>(top, partials);
  if (threadIdx.x == 0) memory::store_4(args.maxima + blockIdx.x, top);
}
