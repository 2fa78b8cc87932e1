// How a warpgroup's fp32 accumulators become BF16 in global memory. d[4 * j + i] is column 8 * j +
// 2 * (lane % 4) + (i & 1) of row lane / 4 + 8 * (i >> 1) of the warp's 16 rows (the WGMMA layout).
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/tma.cuh"
#include "lib/types.cuh"
#include "lib/warpgroup.cuh"
#endif

namespace gemm {

// Straight from registers: four lanes write 16 contiguous bytes of a row. No shared memory, any
// tile width. `row` is the warp's first row, `col` the tile's first column.
template <int kBlockN>
__device__ __forceinline__ void store_direct(const float (&acc)[kBlockN / 2], u16* d, i64 ldd,
                                             int row, int col, int m, int n) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row0 = row + lane / 4;
#pragma unroll
  for (int j = 0; j < kBlockN / 8; ++j) {
    if (col + 8 * j >= n) break;  // n is a multiple of 8
    u16* p = d + row0 * ldd + col + 8 * j + 2 * (lane % 4);
    if (row0 < m) *reinterpret_cast<u32*>(p) = pack_bf16x2(acc[4 * j], acc[4 * j + 1]);
    if (row0 + 8 < m) {
      *reinterpret_cast<u32*>(p + 8 * ldd) = pack_bf16x2(acc[4 * j + 2], acc[4 * j + 3]);
    }
  }
}

// Width in columns of the boxes a tile of kBlockN columns is stored by: the widest swizzle (128,
// 64, 32 bytes) that divides it.
template <int kBlockN>
__host__ __device__ constexpr int store_box_cols() {
  return kBlockN % 64 == 0 ? 64 : kBlockN % 32 == 0 ? 32 : 16;
}

// Into a 64-row staging area: kBlockN / box boxes of 64 rows x box columns, each swizzled as the
// tensor map says (16-byte units of a row XORed with the row's position in the 128-byte lines), so
// that stmatrix meets no bank conflict. `warp` is the warp's index in its warpgroup.
template <int kBlockN, int kRows>
__device__ __forceinline__ void stage_for_tma(const float (&acc)[kBlockN / 2], u32 staging,
                                              int warp) {
  constexpr int kBoxCols = store_box_cols<kBlockN>();
  constexpr int kRowBytes = kBoxCols * 2;
  constexpr int kUnits = kRowBytes / 16;
  constexpr int kRowsPerLine = 128 / kRowBytes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  // stmatrix.x4: lanes 0-7 and 8-15 address rows 0-7 and 8-15 of column group j, 16-31 of group j
  // + 1.
  const int row = warp * 16 + lane % 16;
  const int swizzle = (row / kRowsPerLine) % kUnits;
  // Unit j + lane / 16, j even, is j ^ lane / 16: of the address only that XOR changes with j.
  const u32 first = staging + static_cast<u32>(row * kRowBytes + ((lane / 16) ^ swizzle) * 16);
  if (row >= kRows) return;  // whole groups of 8 lanes: the lanes of rows beyond only pad the warp
#pragma unroll
  for (int j = 0; j < kBlockN / 8; j += 2) {
    const u32 address = (first ^ static_cast<u32>(j % kUnits * 16)) +
                        static_cast<u32>(j * 8 / kBoxCols * kRows * kRowBytes);
    store_matrix_bf16_x4(address, acc + 4 * j);
  }
}

// One thread: the boxes of a staged 64-row strip to global memory. The map clips rows and columns
// that lie outside D.
template <int kBlockN, int kRows>
__device__ __forceinline__ void store_boxes(const TensorMap* d_map, u32 staging, int row, int col) {
  constexpr int kBoxCols = store_box_cols<kBlockN>();
#pragma unroll
  for (int box = 0; box < kBlockN / kBoxCols; ++box) {
    tma::store_2d(d_map, col + box * kBoxCols, row,
                  staging + static_cast<u32>(box * kRows * kBoxCols * 2));
  }
}

}  // namespace gemm
