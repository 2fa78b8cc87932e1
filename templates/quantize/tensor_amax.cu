// The largest finite magnitude of a tensor, as one partial maximum a thread block: the kernel after
// it reduces those few words itself (tensor_magnitude in scale.cuh), so that nothing has to be
// cleared before and the order of arrival decides nothing.
//
//   maxima[block] = max |x| over the block's share, as bits of the input type
//
// Warps take a tile each (first_pass.cuh), every kWarps * gridDim.x tiles.
#ifndef OCTILE_EMITTED
#define OCTILE_AMAX_NAME octile_quantize_tensor_amax_default
#define OCTILE_DEFAULT_GRANULARITY 1
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace tensor_amax {

using Src = quantize::Source<cfg::kSourceType>;
using Pass = quantize::FirstPass<Src, cfg::kAmaxThreads>;
using Input = cfg::Input<Pass::Patch>;
constexpr int kVectors = Pass::kVectors, kWarps = Pass::kWarps;

}  // namespace tensor_amax

extern "C" __global__ void __launch_bounds__(cfg::kAmaxThreads, cfg::kAmaxBlocksPerSm)
    OCTILE_AMAX_NAME(const __grid_constant__ quantize::Args args) {
  using namespace tensor_amax;
  wait_for_previous_kernel();
  if (quantize::skipped(args)) return;
  __shared__ u32 partials[kWarps];
  const u64 across = static_cast<u64>(args.cols + Pass::kCols - 1) / Pass::kCols;
  const u64 tiles = across * (static_cast<u64>(args.rows + kVectors - 1) / kVectors);
  u32 top = 0;
  for (u64 index = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / 32; index < tiles;
       index += static_cast<u64>(args.partials) * kWarps) {
    const quantize::Tile tile = quantize::tile_at(index, across);
    top = reduce::max(top, Pass::largest<Input>(args, tile.row * kVectors, tile.col));
  }
  top = reduce::block_max<cfg::kAmaxThreads>(top, partials);
  if (threadIdx.x == 0) memory::store_4(args.maxima + blockIdx.x, top);
}
