// The codes of one shard of a tensor, given the largest magnitude of every block over all shards
// (shard_amax.cu): those of the whole tensor quantised at once, wherever it was cut.
//
//   q[e] = fp8(x[e] * encode of e's block),   scale[block] = 1 / encode of every block touched
//
// A block that several shards touch has its scale written by each, with the same bits.
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
constexpr bool kSquares = cfg::kGranularity == quantize::k128x128;
constexpr bool kOneScale = kPerTensor || kSquares;  // of all a thread holds
constexpr int kBlock = kShort ? 32 : 128;
constexpr int kLanes = kBlock / Src::kElements;  // of a block along a row
static_assert(cfg::kTileCols == 32 * Src::kElements, "a vector a lane");
using Patch = quantize::ShardPatch<Src, kVectors>;
using Maxima = quantize::ShardMaxima<cfg::kGranularity>;

__device__ __forceinline__ float encode_of(u32 amax) {
  return Rule::encode_amax(__uint_as_float(amax), __uint_as_float(cfg::kAmaxEpsilonBits));
}

// Whether the shard has an element of the block that begins at column `col` in this row.
__device__ __forceinline__ bool touches(const quantize::Args& args, i64 row, i64 col) {
  if (row < args.shard_row || row > args.shard_last_row || col >= args.cols) return false;
  if (row == args.shard_row && col + kBlock <= args.shard_col) return false;
  return row != args.shard_last_row || col < args.shard_end_col;
}

// Of the rows of a block, the first that the shard touches stores its scale.
__device__ __forceinline__ bool stores_scale(const quantize::Args& args, i64 row, i64 col) {
  if (!touches(args, row, col)) return false;
  return !kSquares || row % kBlock == 0 || !touches(args, row - 1, col);
}

__device__ __forceinline__ void store_scale(const quantize::Args& args, i64 row, i64 col,
                                            float encode) {
  const i64 across = (args.cols + kBlock - 1) / kBlock;
  if constexpr (kLong) {
    Runs{args.scale, across, args.rows, args.scale_ld}.store(col / kBlock, row, encode);
  } else if constexpr (kShort) {
    Runs{args.scale, args.rows, across, args.scale_ld}.store(row, col / kBlock, encode);
  } else {
    const i64 down = (args.rows + kBlock - 1) / kBlock;
    Runs{args.scale, down, across, args.scale_ld}.store(row / kBlock, col / kBlock, encode);
  }
}

}  // namespace shard_cast

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace shard_cast;
  wait_for_previous_kernel();
  if (quantize::skipped(args)) return;
  quantize::Tile tile;
  if (!quantize::shard_tile<kVectors, Src::kElements>(args, kWarps, tile)) return;
  const u32 lane = threadIdx.x % 32;
  const Patch patch(args, tile);
  Vector x[kVectors];
  patch.load(args, x);
  u32 amax[kOneScale ? 1 : kVectors];
  const Maxima maxima(args);
#pragma unroll
  for (int i = 0; i < (kOneScale ? 1 : kVectors); ++i) {
    // The first lane of a block may hold nothing of it, and stores its scale all the same.
    const bool exists =
        patch.elements > 0 && (kOneScale || (i >= patch.first_row && i <= patch.last_row));
    amax[i] = exists ? memory::load_4(args.shard_amax + maxima.index(patch.row + i, patch.col)) : 0;
  }
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);

  const bool aligned = patch.aligned(args, args.q, 1);
  char* q = static_cast<char*>(args.q) + patch.offset;
  if (kPerTensor && blockIdx.x == 0 && threadIdx.x == 0) {
    Rule::store(args.scale, 0, encode_of(memory::load_4(args.shard_amax)));
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float encode = encode_of(amax[kOneScale ? 0 : i]);
    if (!kPerTensor && lane % kLanes == 0 && stores_scale(args, patch.row + i, patch.col)) {
      store_scale(args, patch.row + i, patch.col, encode);
    }
    const quantize::Codes<Src> codes = quantize::cast_vector<Src, cfg::kTargetType>(x[i], encode);
    quantize::store_span<Src>(q, codes, patch.span(i), aligned);
    q += patch.step;
  }
  if (nonfinite) quantize::count_nonfinite(args, patch.nonfinite<cfg::kTargetType>(args));
}
