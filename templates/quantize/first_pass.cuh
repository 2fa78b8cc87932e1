// Common parts of the kernels that find maxima before a quantiser (tensor_amax.cu, group_amax.cu,
// line_amax.cu): each warp holds 8 rows x 512 bytes of the source. warp_tile.cu says why. In a
// small tensor it holds fewer rows, so that there are enough warps.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/patch.cuh"
#endif

namespace quantize {

template <typename Source, int kThreads, int kRows = 8>
struct FirstPass {
  using Src = Source;
  static constexpr int kVectors = kRows;  // loads of a thread, one a row
  static constexpr int kCols = 32 * Src::kElements;
  static constexpr int kWarps = kThreads / 32;
  using Patch = quantize::Patch<Src, kVectors, 1, kCols, 1>;

  // Returns the lane's part of the warp's tile, which begins at `row` and column tile `col_tile`.
  static __device__ __forceinline__ Patch patch_at(const Args& args, i64 row, i64 col_tile) {
    return {args, row, col_tile * kCols + threadIdx.x % 32 * Src::kElements};
  }
  // Returns the largest finite magnitude of that part.
  template <typename Input, typename View>
  static __device__ __forceinline__ u32 largest(const View& args, i64 row, i64 col_tile) {
    const Patch patch = patch_at(args, row, col_tile);
    Vector x[kVectors];
    u32 magnitudes[kVectors];
    Input(args, patch).load(patch, x);
    measure<Src>(x, magnitudes);
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
    return top;
  }
};

}  // namespace quantize
