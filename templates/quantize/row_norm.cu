// Finds 1 / rms of every row (rstd, norm.cuh) for kernels that hold no whole row. Each thread block
// takes a row, from the last row to the first (tensor_amax.cu says why), in pieces of 4 loads a
// thread.
#ifndef OCTILE_EMITTED
#define OCTILE_NORM_NAME octile_quantize_row_norm_default
#define OCTILE_DEFAULT_GRANULARITY 4
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

namespace row_norm {

constexpr int kVectors = 4;
using Src = quantize::Source<quantize::kFP32>;
constexpr int kStep = cfg::kNormThreads * Src::kElements;
using Patch = quantize::Patch<Src, kVectors, kVectors, kStep, 1>;
using Input = quantize::FusedInput<Patch, quantize::OnlyInput<cfg::Expression, 0>>;
using Squares = quantize::RowSquares<cfg::kNormThreads, kVectors, 1>;
static_assert(kVectors % Squares::kAll == 0, "every piece begins with the first sum");

}  // namespace row_norm

extern "C" __global__ void __launch_bounds__(cfg::kNormThreads)
    OCTILE_NORM_NAME(const __grid_constant__ quantize::Args args) {
  using namespace row_norm;
  wait_for_previous_kernel();
  if (quantize::skipped(args)) return;
  __shared__ float shared[cfg::kNormThreads];
  const i64 row = static_cast<i64>(gridDim.x) - 1 - blockIdx.x;
  Squares squares;
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += kVectors * kStep) {
    const Patch patch(args, row, col + static_cast<i64>(threadIdx.x) * Src::kElements);
    quantize::Vector x[kVectors];
    Input(args, patch).load(patch, x);
    squares.add(x);
  }
  const float total = squares.total(shared);
  const float rstd =
      quantize::reciprocal_rms(total, args.cols, __uint_as_float(cfg::kNormEpsilonBits));
  if (threadIdx.x == 0) memory::store_4(args.rstd + row, __float_as_uint(rstd));
}
