// Boxes of D that end with a group's rows instead of the matrix, because the next rows belong to
// another group. The map has three dimensions: columns, kStripRows rows, and all rows with as many
// before the first, both as far apart as D's rows (runtime/families/gemm/launch.cc). Row i of a box
// at (column, y, z) is row y + z + i - kStripRows of D. It exists if y + i < kStripRows, so y
// chooses how many do. boxes.cuh has the contract.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#include "lib/tma_3d.cuh"
#endif

namespace gemm::output {

struct ClippedBoxes {
  enum : bool { kOfGroups = true };
  __device__ static __forceinline__ void store(const Destination& to, int column, int row, int end,
                                               u32 src) {
    const int rows = rows_before(row, end);
    tma::store_3d(to.map, column, kStripRows - rows, row + rows, src);
  }
  __device__ static __forceinline__ void add(const Destination& to, int column, int row, int end,
                                             u32 src) {
    const int rows = rows_before(row, end);
    tma::add_3d(to.map, column, kStripRows - rows, row + rows, src);
  }
  __device__ static __forceinline__ void prefetch(const Destination& to, int column, int row,
                                                  int end) {
    if (row >= end) return;
    const int rows = rows_before(row, end);
    tma::prefetch_3d(to.map, column, kStripRows - rows, row + rows);
  }

 private:
  __device__ static __forceinline__ int rows_before(int row, int end) {
    return min(end - row, static_cast<int>(kStripRows));
  }
};

}  // namespace gemm::output
