// Makes every scale of a tensor of the maxima that its ranges have reduced (range_amax.cu), so that
// scales need not be sent:
//
//   scale[i, j] = 1 / encode_scale of range_amax[i, j],   scale_transposed[j, i] = scale[i, j]
//
// A thread has one block. Scales, their padding included, have the bits of quantising the whole
// tensor.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_range_scales_default
#define OCTILE_DEFAULT_GRANULARITY 4
#define OCTILE_DEFAULT_TILE_ROWS 1
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace range_scales {

using Src = quantize::Source<cfg::kSourceType>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using Runs = quantize::ScaleRuns<Rule>;
using Maxima = quantize::RangeMaxima<cfg::kGranularity>;
constexpr int kVectors = 1;  // maxima of a thread
constexpr bool kPerTensor = cfg::kGranularity == quantize::kPerTensor;
constexpr int kBlock = cfg::kGranularity == quantize::k32x32 ? 32 : 128;
static_assert(cfg::kTileRows * cfg::kTileCols == cfg::kThreads, "a maximum for each thread");

__device__ __forceinline__ void store_scale(const Runs& runs, i64 run, i64 i, float encode_scale) {
  if constexpr (kPerTensor) {
    Rule::store(runs.scales, 0, encode_scale);
  } else {
    runs.store(run, i, encode_scale);
  }
}

__device__ __forceinline__ void store(const quantize::Args& args, i64 i, i64 j, i64 down,
                                      i64 across, float encode_scale) {
  store_scale({args.scale, down, across, args.scale_ld}, i, j, encode_scale);
  if (args.scale_transposed == nullptr) return;  // pieces may lack it
  store_scale({args.scale_transposed, across, down, args.scale_ld_transposed}, j, i, encode_scale);
}

}  // namespace range_scales

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace range_scales;
  wait_and_let_next_start();
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  if (quantize::skipped(args)) return;
  const i64 down = kPerTensor ? 1 : (args.rows + kBlock - 1) / kBlock;
  const i64 across = kPerTensor ? 1 : (args.cols + kBlock - 1) / kBlock;
  const quantize::Tile block =
      quantize::tile_at(at.block * cfg::kThreads + threadIdx.x, static_cast<u64>(across));
  if (block.row >= down) return;
  const u32 amax =
      memory::load_4(args.range_amax + Maxima(args).index(block.row * kBlock, block.col * kBlock));
  store(args, block.row, block.col, down, across,
        Rule::encode_scale_of_amax(__uint_as_float(amax), __uint_as_float(cfg::kAmaxEpsilonBits)));
}
