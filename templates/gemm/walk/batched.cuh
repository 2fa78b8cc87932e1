// Walk policy: the tiles of all GEMMs of a batch, one GEMM after the other. dense.cuh has the
// contract. All GEMMs have the same m, n and k. The maps of A, B and D have three dimensions:
// columns, rows and matrices, each of its own stride. So TMA ends a box where its matrix ends.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/walk/dense.cuh"
#include "lib/tma_3d.cuh"
#endif

namespace gemm::walk {

struct Batched : Dense {
  enum : bool { kBatched = true };
  static_assert(kClusterSize == 1 && !kHasTail, "each GEMM has whole tiles, one for each CTA");

  struct Position {
    int tile;  // among those of all GEMMs
    int end;   // the count of those

    __device__ __forceinline__ bool valid() const { return tile < end; }
    __device__ __forceinline__ bool is_tail() const { return false; }
    __device__ __forceinline__ void advance() { tile += static_cast<int>(gridDim.x); }
  };

  __device__ static __forceinline__ Position first(const Extents& e, const SharedMemory&) {
    return {static_cast<int>(blockIdx.x), e.groups * tiles_m(e) * tiles_n(e)};
  }
  __device__ static __forceinline__ void origin(const Position& position, const Extents& e,
                                                int rank, Tile& tile) {
    tile.group = position.tile / (tiles_m(e) * tiles_n(e));
    Dense::origin(within(position, e), e, rank, tile);
  }
  __device__ static __forceinline__ int own_row(const Position& position, const Extents& e,
                                                int rank) {
    return Dense::own_row(within(position, e), e, rank);
  }

  __device__ static __forceinline__ const float* scales_of_a(const Source& from, const Extents&,
                                                             const Tile& tile, int) {
    return from.scale_a + tile.group * strides(from).scale_a + tile.m0;
  }
  __device__ static __forceinline__ i64 scales_before(const Source& from, const Tile& tile) {
    return tile.group * strides(from).scale_b;
  }
  __device__ static __forceinline__ Source source_of_b(const Source& from, const Extents&,
                                                       const Tile& tile) {
    Source of_matrix = from;
    of_matrix.scale_b += scales_before(from, tile);
    return of_matrix;
  }
  __device__ static __forceinline__ void load_a(u32 to, const TensorMap* map, const Tile& tile,
                                                int k, u32 full) {
    tma::load_3d(to, map, k, tile.m0, tile.group, full);
  }
  __device__ static __forceinline__ void load_b(u32 to, const TensorMap* map, const Tile& tile,
                                                int k, int row, u32 full) {
    tma::load_3d(to, map, k, row, tile.group, full);
  }
  __device__ static __forceinline__ MatrixDestination destination_of(const Destination& to,
                                                                     const Source& from,
                                                                     const Tile& tile) {
    MatrixDestination of_matrix{to, tile.group};
    of_matrix.d = static_cast<u8*>(to.d) + tile.group * strides(from).d_bytes;
    return of_matrix;
  }

 private:
  // Returns a part of the kernel's argument, which begins with the map of A. A field of Source or
  // Extents would change the machine code of kernels that do not read it.
  __device__ static __forceinline__ const Batch& strides(const Source& from) {
    return reinterpret_cast<const Arguments*>(from.a_map)->batch;
  }
  __device__ static __forceinline__ int tiles_m(const Extents& e) {
    return ceil_div(e.m, cfg::kBlockM);
  }
  __device__ static __forceinline__ int tiles_n(const Extents& e) {
    return ceil_div(e.n, cfg::kBlockN);
  }
  // Returns the position among the tiles of its GEMM.
  __device__ static __forceinline__ Dense::Position within(const Position& position,
                                                           const Extents& e) {
    return Dense::Position(tiles_m(e), tiles_n(e), position.tile % (tiles_m(e) * tiles_n(e)), 0,
                           e.order);
  }
};

}  // namespace gemm::walk
