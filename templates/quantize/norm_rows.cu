// RMSNorm and row-wise quantisation in one read: scales 1x128, 1x32 and per row, a thread block for
// each row.
//
//   y[r, c] = x[r, c] * rstd[r] * weight[c],   q = fp8(y * encode scale),
//   scale = 1 / encode scale
//
// A row of up to kTileCols columns stays in the registers of its thread block, in pieces of 8
// columns for each thread, kThreads pieces apart:
//
//            |<---------------- kThreads pieces of 8 columns ---------------->|
//   piece 0  | thread 0 | thread 1 | ...                 | thread kThreads - 1 |   columns 0 ..
//   piece 1  | thread 0 | thread 1 | ...                 | thread kThreads - 1 |   kStep columns on
//
// Steps of a row (stream_rows, or give_only_row if a block has one row):
//   source  from shared memory, or by kPieces loads of a thread
//   sum     of squares (norm.cuh, one barrier)
//   weight  from L1, where all rows find it, four pieces at a time; asked for with x if a block has
//           one row of few pieces
//   amax    of a half-warp's piece by shuffles; per row through shared memory, one more barrier
//   scale, cast, output
//
// Shared memory (static): `next` holds the raw pieces of the next row, which cp.async copies while
// this one is worked on; a thread reads only its own copies, so no barrier is needed. `squares`
// (two rows in turn) and `maxima` (one word for each warp) beside it.
//
// Why it is built so:
//   - A block takes kTileRows (2 or 4) rows. More rows hide more of the latency but lose more
//     at the end of the grid.
//   - A row costs a warp about 250 instructions for the sum, its root and the scales, however few
//     columns the warp has. Threads therefore hold many columns.
//   - Facts that no row changes are held as counts and addresses that the compiler cannot derive
//   again.
// Rows that are longer or misaligned go piece by piece, read again for every step, in few registers
// (norm_row). docs/experiments/quantize.md lists what was tried and measured.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_norm_rows_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 1
#define OCTILE_DEFAULT_TILE_COLS 8192
#include "quantize/norm_rows_output.cuh"
#endif

namespace norm_rows {

// ---- rows that fit into the registers -----------------------------------------------------------

// Requests the thread's first `pieces` pieces of the row at x.
__device__ __forceinline__ void request(Vector* next, const char* x, int pieces) {
#pragma unroll
  for (int i = 0; i < kPieces * kLoads; ++i) {
    memory::copy_16(next + i * cfg::kThreads + threadIdx.x,
                    x + i / kLoads * kStepBytes + i % kLoads * sizeof(Vector), i / kLoads < pieces);
  }
  memory::commit_copies();
}

// Zeroes the thread's places in `next`: the pieces beyond the last column are never copied.
__device__ __forceinline__ void clear(Vector* next) {
#pragma unroll
  for (int i = 0; i < kPieces * kLoads; ++i) {
    next[i * cfg::kThreads + threadIdx.x] = {{0, 0, 0, 0}};
  }
}

// Loads the thread's first `pieces` raw pieces of the row at p; the others are zeros.
__device__ __forceinline__ void load_raw(const char* p, int pieces, Raw& raw) {
#pragma unroll
  for (int i = 0; i < kPieces * kLoads; ++i) {
    Vector& one = raw[i / kLoads][0][i % kLoads];
    one = {{0, 0, 0, 0}};
    if (i / kLoads < pieces) {
      one = memory::load_16(p + i / kLoads * kStepBytes + i % kLoads * sizeof(Vector));
    }
  }
}

// Takes the thread's `pieces` pieces of the row at x; the others are zeros. The pieces come from
// `next` if they were requested.
__device__ __forceinline__ void take(const Shared& shared, const char* x, int pieces, Row::X& row) {
  Raw raw;
  if constexpr (Shared::kAhead) {
    memory::wait_copies<0>();
#pragma unroll
    for (int i = 0; i < kPieces * kLoads; ++i) {
      raw[i / kLoads][0][i % kLoads] = shared.next[i * cfg::kThreads + threadIdx.x];
    }
  } else {
    load_raw(x, pieces, raw);
  }
  values_of(raw, row);
}

// Derives and stores the scales of the row y, and writes its codes.
__device__ __forceinline__ void quantize_row(const quantize::Args& args, Shared& shared,
                                             const Row::Patch& patch, LongOwner<Row>& owner,
                                             Row::X& y, float rstd) {
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(y, magnitudes);
  const float encode_scale =
      kPerRow ? find_scale(args, patch.row, largest<Row>(magnitudes), shared.maxima) : 1.0f;
  give<Row>(args, patch, owner, y, magnitudes, encode_scale, rstd, nonfinite);
}

// Norms and quantises `left` rows from `row` on. Each fits into the registers, and each piece is
// whole or beyond the last column.
__device__ __forceinline__ void stream_rows(const quantize::Args& args, Shared& shared, i64 row,
                                            int left, i64 first) {
  Row::Patch patch(args, row, first);
  patch.rows = 1;
  patch.cols = static_cast<int>(hide_from_optimizer(static_cast<u32>(patch.cols)));
  const int pieces = (patch.cols + kStep - kPieceCols) / kStep;  // pieces of the thread that exist
  Row::Values x_row(args, patch);
  if constexpr (Shared::kAhead) {
    clear(shared.next);
    request(shared.next, x_row.at(0, 0, patch.col), pieces);
  }
  LongOwner<Row> owner(args, patch);
  float* squares_of = shared.squares[0];
#pragma unroll 1
  while (true) {
    Row::X x;
    take(shared, x_row.at(0, 0, patch.col), pieces, x);
    ++x_row.row;
    if constexpr (Shared::kAhead) {
      request(shared.next, x_row.at(0, 0, patch.col), left > 1 ? pieces : 0);
    }
    quantize::RowSquares<cfg::kThreads, kVectors, 2> squares;
    squares.add(x);
    const float rstd = store_rstd(args, patch.row, squares.total(squares_of));
    squares_of = squares_of == shared.squares[0] ? shared.squares[1] : shared.squares[0];
    norm<Row, true>(args, patch, rstd, x);
    quantize_row(args, shared, patch, owner, x, rstd);
    if (--left == 0) return;
    ++patch.row;
    owner.advance();
  }
}

// Norms and quantises the block's only row, if `fits`: it fits into the registers, and each piece
// is whole or beyond the last column. Returns `fits`. Addresses are found before the wait for the
// kernels before, which it holds, and the weight is asked for with x if registers hold both.
__device__ __forceinline__ bool give_only_row(const quantize::Args& args, Shared& shared, bool fits,
                                              Row::Patch patch) {
  patch.rows = 1;
  const int pieces = hide_from_optimizer((patch.cols + kStep - kPieceCols) / kStep);
  const char* const x_at = hide_from_optimizer(Row::Values(args, patch).at(0, 0, patch.col));
  const char* const weight_at = hide_from_optimizer(Row::Weight(args, patch).at(0, 0, patch.col));
  LongOwner<Row> owner(args, patch);
  wait_and_let_next_start();
  if (!fits || quantize::skipped(args)) return fits;
  Raw raw_x, raw_weight;
  load_raw(x_at, pieces, raw_x);
  if constexpr (kHoldsWeight) load_raw(weight_at, pieces, raw_weight);
  Row::X x;
  values_of(raw_x, x);
  quantize::RowSquares<cfg::kThreads, kVectors, 2> squares;
  squares.add(x);
  const float rstd = store_rstd(args, patch.row, squares.total(shared.squares[0]));
  if constexpr (kHoldsWeight) {
    norm_held(args, patch, raw_weight, pieces, rstd, x);
  } else {
    norm<Row, true>(args, patch, rstd, x);
  }
  quantize_row(args, shared, patch, owner, x, rstd);
  return true;
}

// ---- all other rows -----------------------------------------------------------------------------

// Loads a piece of any row, in few registers, and returns its patch.
__device__ __forceinline__ One::Patch load_one(const quantize::Args& args, i64 row, i64 col,
                                               One::X& x) {
  const One::Patch patch(args, row, col + static_cast<i64>(threadIdx.x) * kPieceCols);
  One::Values(args, patch).load_edge(patch, x);
  return patch;
}

// Norms and quantises any row, piece by piece: one that is misaligned or too long. Every step reads
// it again.
__device__ __forceinline__ void norm_row(const quantize::Args& args, Shared& shared, i64 row) {
  One::X x;
  u32 magnitudes[One::kVectors];
  // sum
  quantize::RowSquares<cfg::kThreads, 2 * (quantize::kRowSums / cfg::kThreads / 2), 2> squares;
  int piece = 0;
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += kStep, ++piece) {
    load_one(args, row, col, x);
    squares.add_piece(piece, x[0], x[1]);
  }
  const float rstd = store_rstd(args, row, squares.total(shared.squares[0]));
  // scale
  float encode_scale = 1.0f;
  if constexpr (kPerRow) {
    u32 top = 0;
#pragma unroll 1
    for (i64 col = 0; col < args.cols; col += kStep) {
      const One::Patch patch = load_one(args, row, col, x);
      norm<One, false>(args, patch, rstd, x);
      quantize::measure<Src>(x, magnitudes);
      top = reduce::max(top, largest<One>(magnitudes));
    }
    encode_scale = find_scale(args, row, top, shared.maxima);
  }
  // cast, output
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += kStep) {
    const One::Patch patch = load_one(args, row, col, x);
    norm<One, false>(args, patch, rstd, x);
    const bool nonfinite = quantize::measure<Src>(x, magnitudes);
    LongOwner<One> owner(args, patch);
    give<One>(args, patch, owner, x, magnitudes, encode_scale, rstd, nonfinite);
  }
  __syncthreads();  // before the next row's squares
}

}  // namespace norm_rows

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace norm_rows;
  if constexpr (!kOneRow) wait_and_let_next_start();
  if (!kOneRow && quantize::skipped(args)) return;
  __shared__ Shared shared;
  const i64 begin = static_cast<i64>(blockIdx.x) * cfg::kTileRows;
  const i64 end = begin + cfg::kTileRows < args.rows ? begin + cfg::kTileRows : args.rows;
  const i64 first = static_cast<i64>(threadIdx.x) * kPieceCols;
  const Row::Patch patch(args, begin, first);
  const bool fits = Row::Values(args, patch).aligned && Row::Weight(args, patch).aligned &&
                    args.cols % kPieceCols == 0 && args.cols <= cfg::kTileCols;
  if constexpr (kOneRow) {
    if (give_only_row(args, shared, fits, patch) || quantize::skipped(args)) return;
  } else if (fits) {
    return stream_rows(args, shared, begin, static_cast<int>(end - begin), first);
  }
#pragma unroll 1
  for (i64 row = begin; row < end; ++row) norm_row(args, shared, row);
}
