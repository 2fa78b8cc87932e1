// Bias gradients beside the cast: the sums of the source's columns.
//
// The sums have one order. In every 128 rows, 8 consecutive rows are added in turn, then the 16
// such sums in turn, each from zero (this file). Then the blocks of 128 rows are added in turn
// (bias_sum.cu). Infinities and NaNs count.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/patch.cuh"
#endif

namespace quantize {

template <typename P, int kCols>
struct ColumnSums {
  using Src = typename P::Src;
  static constexpr int kPatches = 128 / P::kVectors;
  float sum[kPatches][kCols];

  // Leaves the sums of the thread's patch, which begins at row kVectors * patch_row of the tile.
  __device__ __forceinline__ void put(int patch_row, int column,
                                      const typename Src::Held (&x)[P::kVectors]) {
    static_assert(P::kVectors == 8 && P::kRowStep == 1, "8 consecutive rows");
#pragma unroll
    for (int j = 0; j < Src::kElements; ++j) {
      float s = 0.0f;
#pragma unroll
      for (int i = 0; i < P::kVectors; ++i) s = __fadd_rn(s, value_at<Src>(x[i], j));
      sum[patch_row][column + j] = s;
    }
  }

  // Writes the sums of the tile to the workspace, one column for each thread. Call it after a
  // barrier.
  __device__ __forceinline__ void write(const Args& args, i64 row0, i64 col0) const {
    const int column = static_cast<int>(threadIdx.x);
    if (column >= kCols || col0 + column >= args.cols) return;
    float s = 0.0f;
#pragma unroll
    for (int p = 0; p < kPatches; ++p) s = __fadd_rn(s, sum[p][column]);
    memory::store_4(args.bias_partials + row0 / 128 * args.cols + col0 + column,
                    __float_as_uint(s));
  }
};

}  // namespace quantize
