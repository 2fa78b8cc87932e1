// Row-wise quantisation with one scale for each row, by a thread block for each row.
//
//   q[r, c] = fp8(x[r, c] * encode_scale[r]),   scale[r] = 1 / encode_scale[r]
//
// A row of up to kTileCols columns stays in the registers of its thread block and is read once. A
// longer row is read twice, the second time mostly from L2.
//
//             |<------------------ kTileCols ------------------>|
//   vector 0  | thread 0 | thread 1 | ... | thread kThreads - 1 |  one contiguous load
//   vector 1  | thread 0 | thread 1 | ... | thread kThreads - 1 |
//
// Steps: source (kVectors loads of a thread) -> amax (maximum of the block, one barrier) -> scale
// (every thread) -> cast -> output.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_cta_row_default
#define OCTILE_DEFAULT_GRANULARITY 2
#define OCTILE_DEFAULT_TILE_ROWS 1
#define OCTILE_DEFAULT_TILE_COLS 8192
#include "quantize/default_prologue.cuh"
#endif

namespace cta_row {

using Src = quantize::Source<cfg::kSourceType>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using quantize::Vector;

constexpr int kStep = cfg::kThreads * Src::kElements;  // columns of one load of the block
constexpr int kVectors = cfg::kTileCols / kStep;       // loads of a thread
static_assert(cfg::kTileRows == 1 && kVectors * kStep == cfg::kTileCols, "whole loads of a row");

using Groups = quantize::Walk<cfg::kGroupWalk>;
using View = Groups::View;
using Patch = quantize::Patch<Src, kVectors, kVectors, kStep, 1>;
using Input = cfg::Input<Patch>;
using Output = quantize::RowOutput<Patch>;

// A row of the tensor itself is placed before the wait for the kernels before, so that the
// addresses overlap their end. Where groups are is read from memory.
constexpr bool kPlacedBeforeWait = cfg::kGroupWalk == 0 && !Input::kComputed;

// Loads the patch and raises `top` to its maximum. Returns whether it holds infinities or NaNs.
__device__ __forceinline__ bool take(const Input& input, const Patch& patch, Vector (&x)[kVectors],
                                     u32& top) {
  input.load(patch, x);
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  return nonfinite;
}

// Writes the codes of the patch.
__device__ __forceinline__ void give(const View& args, const Patch& patch,
                                     const Vector (&x)[kVectors], float encode_scale,
                                     bool nonfinite) {
  const Output output(args, patch);
  output.write<cfg::kTargetType>(patch, x, [&](int) { return encode_scale; });
  if (nonfinite) {
    quantize::count_nonfinite(args,
                              output.mark_nonfinite<cfg::kTargetType>(patch, Input(args, patch)));
  }
}

// Returns the encode scale of the row. The block's first thread stores the scale.
__device__ __forceinline__ float find_scale(const View& args, i64 row, u32 top) {
  __shared__ u32 partials[cfg::kThreads / 32];
  top = reduce::block_max<cfg::kThreads>(top, partials);
  const float encode_scale = Rule::encode_scale(top, __uint_as_float(cfg::kAmaxEpsilonBits));
  if (threadIdx.x == 0) {
    const quantize::ScaleRuns<Rule> scales{args.scale, 1, quantize::scale_rows(args),
                                           args.scale_ld};
    scales.store(0, row - quantize::scale_origin(args), encode_scale);
  }
  return encode_scale;
}

// Quantises a row that its thread block holds. kWaits: it holds the wait for the kernels before.
template <bool kWaits, typename From>
__device__ __forceinline__ void give_held_row(const View& args, const Patch& patch, From input) {
  if constexpr (kWaits) {
    input.settle();
    wait_and_let_next_start();
    if (quantize::skipped(args)) return;
  }
  Vector x[kVectors];
  u32 top = 0;
  const bool nonfinite = take(input, patch, x, top);
  give(args, patch, x, find_scale(args, patch.row, top), nonfinite);
}

// Quantises a row of any length, which is read twice.
__device__ __forceinline__ void give_long_row(const View& args, i64 row, i64 first) {
  Vector x[kVectors];
  u32 top = 0;
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += cfg::kTileCols) {
    const Patch patch(args, row, first + col);
    take(Input(args, patch), patch, x, top);
  }
  const float encode_scale = find_scale(args, row, top);
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += cfg::kTileCols) {
    const Patch patch(args, row, first + col);
    const bool nonfinite = take(Input(args, patch), patch, x, top);
    give(args, patch, x, encode_scale, nonfinite);
  }
}

__device__ __forceinline__ void run(const quantize::Args& whole) {
  const bool held = whole.cols <= cfg::kTileCols;
  const i64 first = static_cast<i64>(threadIdx.x) * Src::kElements;
  i64 row = blockIdx.x;
  if (!kPlacedBeforeWait || !held) {
    wait_and_let_next_start();
    if (quantize::skipped(whole)) return;
  }
  auto&& args = Groups::enter<1>(whole, row);
  row += quantize::first_row(args);
  if (row >= args.rows) return;
  if (!held) return give_long_row(args, row, first);
  const Patch patch(args, row, first);
  give_held_row<kPlacedBeforeWait>(args, patch, Input(args, patch));
}

}  // namespace cta_row

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  const quantize::Entered<cfg::Arguments> at(all);
  cta_row::run(at.args);
}
