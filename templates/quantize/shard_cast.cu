// Quantises one shard of a tensor, given the largest magnitude of every block over all shards
// (shard_amax.cu). The codes are those of the whole tensor quantised at once, wherever it was cut.
//
//   q[e] = fp8(x[e] * encode_scale of e's block),   scale[block] = 1 / encode_scale of every block
//   touched
//
// If several shards touch a block, each of them writes the block's scale, with the same bits.
// Pieces leave scales to shard_scales.cu.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_shard_cast_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace shard_cast {

using Src = quantize::Source<cfg::kSourceType>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using Runs = quantize::ScaleRuns<Rule>;
using quantize::Vector;
constexpr int kVectors = cfg::kTileRows;
constexpr int kWarps = cfg::kThreads / 32;
constexpr bool kPerTensor = cfg::kGranularity == quantize::kPerTensor;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr bool kShort = cfg::kGranularity == quantize::k1x32;
constexpr bool kSquares =
    cfg::kGranularity == quantize::k128x128 || cfg::kGranularity == quantize::k32x32;
constexpr bool kOneScale = kPerTensor || kSquares;  // a thread's elements share a scale
constexpr int kBlock = kShort || cfg::kGranularity == quantize::k32x32 ? 32 : 128;
constexpr int kLanes = kBlock / Src::kElements;  // lanes of a block along a row
static_assert(cfg::kTileCols == 32 * Src::kElements, "a vector a lane");
using Patch = quantize::ShardPatch<Src, kVectors>;
using Maxima = quantize::ShardMaxima<cfg::kGranularity>;

__device__ __forceinline__ float encode_scale_of(u32 amax) {
  return Rule::encode_scale_of_amax(__uint_as_float(amax), __uint_as_float(cfg::kAmaxEpsilonBits));
}

// Returns whether the shard has an element, in this row, of the block that begins at column `col`.
__device__ __forceinline__ bool touches(const quantize::Args& args, i64 row, i64 col) {
  if (row < args.shard_row || row > args.shard_last_row || col >= args.cols) return false;
  if (row == args.shard_row && col + kBlock <= args.shard_col) return false;
  return row != args.shard_last_row || col < args.shard_end_col;
}

// Returns whether this row stores the block's scale: the first of its rows that the shard touches.
__device__ __forceinline__ bool stores_scale(const quantize::Args& args, i64 row, i64 col) {
  if (!touches(args, row, col)) return false;
  return !kSquares || row % kBlock == 0 || !touches(args, row - 1, col);
}

__device__ __forceinline__ void store_scale(const quantize::Args& args, i64 row, i64 col,
                                            float encode_scale) {
  const i64 across = (args.cols + kBlock - 1) / kBlock;
  if constexpr (kLong) {
    Runs{args.scale, across, args.rows, args.scale_ld}.store(col / kBlock, row, encode_scale);
  } else if constexpr (kShort) {
    Runs{args.scale, args.rows, across, args.scale_ld}.store(row, col / kBlock, encode_scale);
  } else {
    const i64 down = (args.rows + kBlock - 1) / kBlock;
    Runs{args.scale, down, across, args.scale_ld}.store(row / kBlock, col / kBlock, encode_scale);
  }
}

}  // namespace shard_cast

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace shard_cast;
  wait_and_let_next_start();
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  if (quantize::skipped(args)) return;
  quantize::Tile tile;
  if (!quantize::shard_tile<kVectors, Src::kElements>(args, at.block, kWarps, tile)) return;
  const u32 lane = threadIdx.x % 32;
  const Patch patch(args, tile);
  Vector x[kVectors];
  patch.load(args, x);
  u32 amax[kOneScale ? 1 : kVectors];
  const Maxima maxima(args);
#pragma unroll
  for (int i = 0; i < (kOneScale ? 1 : kVectors); ++i) {
    // The first lane of a block stores its scale even if it holds no element of it.
    const bool exists =
        patch.elements > 0 && (kOneScale || (i >= patch.first_row && i <= patch.last_row));
    amax[i] = exists ? memory::load_4(args.shard_amax + maxima.index(patch.row + i, patch.col)) : 0;
  }
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);

  const bool aligned = patch.aligned(args, args.q, 1);
  char* q = static_cast<char*>(args.q) + patch.offset;
  if (cfg::kStoresScales && kPerTensor && at.block == 0 && threadIdx.x == 0) {
    Rule::store(args.scale, 0, encode_scale_of(memory::load_4(args.shard_amax)));
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float encode_scale = encode_scale_of(amax[kOneScale ? 0 : i]);
    if (cfg::kStoresScales && !kPerTensor && lane % kLanes == 0 &&
        stores_scale(args, patch.row + i, patch.col)) {
      store_scale(args, patch.row + i, patch.col, encode_scale);
    }
    const quantize::Codes<Src> codes =
        quantize::cast_vector<Src, cfg::kTargetType>(x[i], encode_scale);
    quantize::store_span<Src>(q, codes, patch.span(i), aligned);
    q += patch.step;
  }
  if (nonfinite) quantize::count_nonfinite(args, patch.nonfinite<cfg::kTargetType>(args));
}
