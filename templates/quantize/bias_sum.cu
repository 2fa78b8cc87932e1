// Adds up the bias gradients from the sums of every 128 rows (bias.cuh), in the order of the rows:
//
//   bias_gradient[c] = sum over b of bias_partials[b, c]
//
// Each thread adds one column and has 16 loads in flight.
#ifndef OCTILE_EMITTED
#define OCTILE_BIAS_NAME octile_bias_sum_default
#define OCTILE_DEFAULT_GRANULARITY 4
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

extern "C" __global__ void __launch_bounds__(32)
    OCTILE_BIAS_NAME(const __grid_constant__ quantize::Args args) {
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;
  const i64 column = static_cast<i64>(blockIdx.x) * 32 + threadIdx.x;
  if (column >= args.cols) return;
  const i64 blocks = (args.rows + 127) / 128;
  const float* p = args.bias_partials + column;
  float sum = 0.0f;
  i64 block = 0;
#pragma unroll 1
  for (; block + 16 <= blocks; block += 16) {
    u32 part[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) part[i] = memory::load_4(p + i * args.cols);
#pragma unroll
    for (int i = 0; i < 16; ++i) sum = __fadd_rn(sum, __uint_as_float(part[i]));
    p += 16 * args.cols;
  }
#pragma unroll 1
  for (; block < blocks; ++block) {
    sum = __fadd_rn(sum, __uint_as_float(memory::load_4(p)));
    p += args.cols;
  }
  memory::store_4(args.bias_gradient + column, __float_as_uint(sum));
}
