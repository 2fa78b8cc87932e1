// The largest finite magnitude of every row and every column of a tensor, for scales per row where
// a transposed copy is wanted:
//
//   maxima[r] = max |x[r, :]|,   maxima[rows + c] = max |x[:, c]|,   as bits of the input type
//
// The host clears the maxima before. A thread block walks down one stripe of 32 * kElements
// columns, its warps 8 rows apart. It raises a row's maximum by one atomic for each warp and row,
// and a column's by one atomic for each thread block and column. Maxima do not depend on the order
// of arrival.
//
// Up to kWholeLineRows rows, a thread block reads a whole line instead. x is then read twice, the
// second time from L2, and no maximum has to be cleared or raised:
//
//   block 0 .. rows - 1: a row each          the others: kLanes * kElements columns each
//
// Stripes are visited from the last to the first, and the kernel after this one starts early
// (tensor_amax.cu says why).
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
constexpr int kStripeRows = cfg::kAmaxStripe;  // many rows a thread block: few column atomics

// ---- whole lines --------------------------------------------------------------------------------

constexpr int kPieces = 4;  // loads of a thread
using RowPatch = quantize::Patch<Src, kPieces, kPieces, cfg::kAmaxThreads * Src::kElements, 1>;

__device__ __forceinline__ void find_row(const quantize::Args& args, i64 row) {
  __shared__ u32 partials[kWarps];
  u32 top = 0;
#pragma unroll 1
  for (i64 first = 0; first < args.cols; first += kPieces * RowPatch::kGroupCols) {
    const RowPatch patch(args, row, first + threadIdx.x * Src::kElements);
    Vector x[kPieces];
    u32 magnitudes[kPieces];
    cfg::Input<RowPatch>(args, patch).load(patch, x);
    quantize::measure<Src>(x, magnitudes);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) top = reduce::max(top, magnitudes[i]);
  }
  top = reduce::block_max<cfg::kAmaxThreads>(top, partials);
  if (threadIdx.x == 0) memory::store_4(args.maxima + row, top);
}

constexpr int kLanes = cfg::kAmaxLanes;  // along a row
constexpr int kTileCols = kLanes * Src::kElements;
constexpr int kTileRows = cfg::kAmaxThreads / kLanes;  // rows of one load of the block
using ColumnPatch = quantize::Patch<Src, kPieces, 1, kTileCols, kTileRows>;

__device__ __forceinline__ void find_columns(const quantize::Args& args, i64 col0) {
  __shared__ Vector columns[kWarps][kLanes];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  Vector top = {{0, 0, 0, 0}};
#pragma unroll 1
  for (i64 row = threadIdx.x / kLanes; row < args.rows; row += kPieces * kTileRows) {
    const ColumnPatch patch(args, row, col0 + threadIdx.x % kLanes * Src::kElements);
    Vector x[kPieces];
    u32 magnitudes[kPieces];
    cfg::Input<ColumnPatch>(args, patch).load(patch, x);
    quantize::measure<Src>(x, magnitudes);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) quantize::raise_tops<Src>(top, x[i]);
  }
  top = quantize::over_rows<Src, kLanes>(top);
  if (lane < kLanes) columns[warp][lane] = top;
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kTileCols || col0 + column >= args.cols) return;
  const u32 largest = quantize::column_top<Src, kWarps>(columns, column);
  memory::store_4(args.maxima + args.rows + col0 + column, largest);
}

}  // namespace line_amax

extern "C" __global__ void __launch_bounds__(cfg::kAmaxThreads, cfg::kAmaxBlocksPerSm)
    OCTILE_AMAX_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace line_amax;
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  wait_for_previous_kernel();
  if (quantize::skipped(args)) return;
  const bool whole_lines = args.rows <= cfg::kWholeLineRows;
  if (!Input::kComputed || !whole_lines) let_next_kernel_start();
  if (whole_lines) {
    const i64 block = blockIdx.x;
    if (block < args.rows) {
      find_row(args, block);
    } else {
      find_columns(args, (block - args.rows) * kTileCols);
    }
    return;
  }
  __shared__ Vector columns[kWarps][32];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 across = static_cast<u64>(args.cols + kCols - 1) / kCols;
  const quantize::Tile stripe = quantize::tile_at(gridDim.x - 1 - blockIdx.x, across);
  const i64 end = (stripe.row + 1) * kStripeRows;

  Vector top = {{0, 0, 0, 0}};
  for (i64 row = stripe.row * kStripeRows + warp * kVectors; row < end && row < args.rows;
       row += kWarps * kVectors) {
    const Pass::Patch patch = Pass::patch_at(args, row, stripe.col);
    Vector x[kVectors];
    u32 magnitudes[kVectors];
    Input(args, patch).load(patch, x);
    quantize::measure<Src>(x, magnitudes);
    quantize::hide_from_optimizer(x);  // no magnitudes are kept for the columns
#pragma unroll
    for (int i = 0; i < kVectors; ++i) quantize::raise_tops<Src>(top, x[i]);
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
    const u32 largest = quantize::column_top<Src, kWarps>(columns, column);
    if (col < args.cols) atomicMax(args.maxima + args.rows + col, largest);
  }
}
