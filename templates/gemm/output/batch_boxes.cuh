// Boxes of the D of a batch. The map has three dimensions: columns, rows and matrices, each of its
// own stride. It clips rows and columns outside a matrix. boxes.cuh has the contract.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#include "lib/tma_3d.cuh"
#endif

namespace gemm::output {

struct BatchBoxes {
  __device__ static __forceinline__ void store(const Destination& to, int column, int row, int,
                                               u32 src) {
    tma::store_3d(to.map, column, row, matrix_of(to), src);
  }
  __device__ static __forceinline__ void add(const Destination& to, int column, int row, int,
                                             u32 src) {
    tma::add_3d(to.map, column, row, matrix_of(to), src);
  }
  __device__ static __forceinline__ void prefetch(const Destination& to, int column, int row, int) {
    tma::prefetch_3d(to.map, column, row, matrix_of(to));
  }

 private:
  // The walk of a batch gives no other destinations.
  __device__ static __forceinline__ int matrix_of(const Destination& to) {
    return static_cast<const MatrixDestination&>(to).matrix;
  }
};

}  // namespace gemm::output
