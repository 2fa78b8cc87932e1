// The largest finite magnitude of every row and every column of a tensor, for scales per row where
// a transposed copy is wanted:
//
//   maxima[r] = max |x[r, :]|,   maxima[rows + c] = max |x[:, c]|,   as bits of the input type
//
// The host clears them before. A thread block walks down one stripe of 32 * kElements columns, its
// warps 8 rows apart; a row's maximum leaves with one atomic a warp and row, a column's with one
// a thread block and column. Maxima do not depend on the order of arrival.
#ifndef OCTILE_EMITTED
#define OCTILE_AMAX_NAME octile_quantize_line_amax_default
#define OCTILE_DEFAULT_GRANULARITY 2
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

namespace line_amax {

using Src = quantize::Source<cfg::kSourceType>;
using Pass = quantize::FirstPass<Src, cfg::kAmaxThreads>;
using Input = cfg::Input<Pass::Patch>;
using quantize::Vector;
constexpr int kVectors = Pass::kVectors, kCols = Pass::kCols, kWarps = Pass::kWarps;
constexpr int kStripeRows = 512;  // of one thread block: enough to make its column atomics few

}  // namespace line_amax

extern "C" __global__ void __launch_bounds__(cfg::kAmaxThreads, cfg::kAmaxBlocksPerSm)
    OCTILE_AMAX_NAME(const __grid_constant__ quantize::Args args) {
  using namespace line_amax;
  wait_for_previous_kernel();
  if (quantize::skipped(args)) return;
  __shared__ Vector columns[kWarps][32];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 across = static_cast<u64>(args.cols + kCols - 1) / kCols;
  const quantize::Tile stripe = quantize::tile_at(blockIdx.x, across);
  const i64 end = (stripe.row + 1) * kStripeRows;

  Vector top = {{0, 0, 0, 0}};
  for (i64 row = stripe.row * kStripeRows + warp * kVectors; row < end && row < args.rows;
       row += kWarps * kVectors) {
    const Pass::Patch patch = Pass::patch_at(args, row, stripe.col);
    Vector x[kVectors];
    u32 magnitudes[kVectors];
    Input(args, patch).load(patch, x);
    quantize::measure<Src>(x, magnitudes);
    quantize::forget_origin(x);  // or magnitudes of every word are kept for the columns
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) top.word[w] = Src::larger(top.word[w], x[i].word[w]);
    }
    const u32 row_top = reduce::scatter_max<kVectors, 32>(magnitudes, lane);
    const int owned = reduce::owned_index<kVectors, 32>(lane);
    if (static_cast<int>(lane) == reduce::owner_lane<kVectors, 32>(lane, owned) &&
        owned < patch.rows) {
      atomicMax(args.maxima + row + owned, row_top);
    }
  }

  columns[warp][lane] = quantize::magnitudes_of<Src>(top);
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < kCols; column += cfg::kAmaxThreads) {
    const i64 col = stripe.col * kCols + column;
    const int element = column % Src::kElements;
    u32 largest = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const Vector& v = columns[w][column / Src::kElements];
      largest = reduce::max(largest, Src::pick(v.word[element / Src::kElementsAWord], element));
    }
    if (col < args.cols) atomicMax(args.maxima + args.rows + col, largest);
  }
}
