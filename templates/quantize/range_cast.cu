// Quantises a range of a tensor, given the largest magnitude of every block over all ranges
// (range_amax.cu). The codes are those of the whole tensor quantised at once, wherever it was cut.
//
//   q[e] = fp8(x[e] * encode_scale of e's block)
//
// Blocks are square, or the whole tensor, so that a thread's elements share a scale.
// range_scales.cu writes the scales.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_range_cast_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace range_cast {

using Src = quantize::Source<cfg::kSourceType>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using quantize::Vector;
constexpr int kVectors = cfg::kTileRows;
constexpr int kWarps = cfg::kThreads / 32;
constexpr int kBlock = cfg::kGranularity == quantize::k32x32 ? 32 : 128;
static_assert(cfg::kTileCols == 32 * Src::kElements, "a vector a lane");
static_assert(kBlock % cfg::kTileRows == 0, "a tile lies in one row of square blocks");
using Patch = quantize::RangePatch<Src, kVectors>;
using Maxima = quantize::RangeMaxima<cfg::kGranularity>;

__device__ __forceinline__ float encode_scale_of(u32 amax) {
  return Rule::encode_scale_of_amax(__uint_as_float(amax), __uint_as_float(cfg::kAmaxEpsilonBits));
}

}  // namespace range_cast

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace range_cast;
  wait_and_let_next_start();
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  if (quantize::skipped(args)) return;
  quantize::Tile tile;
  if (!quantize::range_tile<kVectors, Src::kElements>(args, at.block, kWarps, tile)) return;
  const Patch patch(args, tile);
  Vector x[kVectors];
  patch.load(args, x);
  const u32 amax = patch.elements > 0
                       ? memory::load_4(args.range_amax + Maxima(args).index(patch.row, patch.col))
                       : 0;
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);

  const bool aligned = patch.aligned(args, args.q, 1);
  char* q = static_cast<char*>(args.q) + patch.offset;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float encode_scale = encode_scale_of(amax);
    const quantize::Codes<Src> codes =
        quantize::cast_vector<Src, cfg::kTargetType>(x[i], encode_scale);
    quantize::store_span<Src>(q, codes, patch.span(i), aligned);
    q += patch.step;
  }
  if (nonfinite) quantize::count_nonfinite(args, patch.nonfinite<cfg::kTargetType>(args));
}
