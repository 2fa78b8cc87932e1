// The largest finite magnitude of a tensor, as one partial maximum a thread block: the kernel after
// it reduces those few words itself (tensor_magnitude in scale.cuh), so that nothing has to be
// cleared before and the order of arrival decides nothing.
//
//   maxima[block] = max |x| over the block's share, as bits of the input type
//
// Warps take a tile each (first_pass.cuh), every kWarps * gridDim.x tiles, from the last to the
// first: the kernel after this one begins with what L2 still has.
//
// Ladder, with the cast behind it, 16384x7168 / 4096x7168 bf16, of the stream that reads twice:
//   version                                          predicted  measured       verdict
//   from the first to the last                       -          0.956 / 0.846  was this file
//   from the last to the first                       1.00       0.972 / 0.900  this file
//   all but the first 32 MB evicted first            1.02       0.970 / 0.930  dropped
//   codes evicted first, too                         1.02       0.975 / 0.933  dropped
//   the first 32 MB evicted last, x first when cast  1.02       0.938 / 0.934  dropped
//   the cast may start early                         -          0.972 / 0.908  was this file
//   and loads x before it waits for this             0.985      0.980 / 0.931  this file (0.973 and
//                                                               0.911 beside it)
//
// Of 1024 rows the last took 11.77 us -> 11.29, of 128, where the cast then may start early too,
// 4.13 -> 3.67 (with the transposed copy 15.0 -> 14.4 and 4.56 -> 4.33); where x is computed, of
// 128 rows GELU with both 8.2 -> 10.1: not those. Contiguous groups 0.950 -> 0.966 of the stream.
//
// What L2 has costs less than was predicted: half of it lies in the L2's other part, and the way
// there (ltcfabric2ltc, 93 % busy while a cast streams) is what bounds, from DRAM or not. Codes
// evicted first are not there for the product that reads them.
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
  // Which computes x beside this one, where it does: not of a small tensor.
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
