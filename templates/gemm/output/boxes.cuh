// Boxes of D that TMA stores, in a map of two dimensions that clips rows and columns outside D.
//
// Contract of a kind of boxes. One thread calls its functions; `end` is the row from which on
// nothing is stored, and the box begins before it.
//   store(to, column, row, end, src)  copies a box from shared memory to D
//   add(to, column, row, end, src)    adds one of fp32
//   prefetch(to, column, row, end)    brings one into L2; it may begin behind the end
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#include "lib/tma_reduce.cuh"
#endif

namespace gemm::output {

struct Boxes {
  enum : bool { kOfGroups = false };
  __device__ static __forceinline__ void store(const Destination& to, int column, int row, int,
                                               u32 src) {
    tma::store_2d(to.map, column, row, src);
  }
  __device__ static __forceinline__ void add(const Destination& to, int column, int row, int,
                                             u32 src) {
    tma::add_2d(to.map, column, row, src);
  }
  __device__ static __forceinline__ void prefetch(const Destination& to, int column, int row, int) {
    tma::prefetch_2d(to.map, column, row);
  }
};

}  // namespace gemm::output
