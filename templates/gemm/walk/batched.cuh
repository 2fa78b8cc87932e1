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
  // Also writes which GEMM has the tile.
  __device__ static __forceinline__ void origin(const Position& position, const Extents& e,
                                                int rank, Tile& tile) {
    tile.group = matrix_of(position, e);
    Dense::origin(within(position, e), e, rank, tile);
  }
  __device__ static __forceinline__ int own_row(const Position& position, const Extents& e,
                                                int rank) {
    return Dense::own_row(within(position, e), e, rank);
  }

  __device__ static __forceinline__ const float* scales_of_a(const Source& from, const Extents& e,
                                                             const Tile& tile, int) {
    return from.scale_a + tile.group * e.batch->scale_a + tile.m0;
  }
  __device__ static __forceinline__ Source source_of_b(const Source& from, const Extents& e,
                                                       const Tile& tile) {
    Source of_matrix = from;
    of_matrix.scale_b += tile.group * e.batch->scale_b;
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
  __device__ static __forceinline__ Destination destination_of(const Destination& to,
                                                               const Extents& e, const Tile& tile) {
    Destination of_matrix = to;
    of_matrix.d = static_cast<u8*>(to.d) + tile.group * e.batch->d_bytes;
    of_matrix.matrix = tile.group;
    return of_matrix;
  }

 private:
  __device__ static __forceinline__ int tiles_m(const Extents& e) {
    return ceil_div(e.m, cfg::kBlockM);
  }
  __device__ static __forceinline__ int tiles_n(const Extents& e) {
    return ceil_div(e.n, cfg::kBlockN);
  }
  __device__ static __forceinline__ int matrix_of(const Position& position, const Extents& e) {
    return static_cast<int>(e.batch->tiles.divide(static_cast<u32>(position.tile)));
  }
  // Returns the position among the tiles of its GEMM.
  __device__ static __forceinline__ Dense::Position within(const Position& position,
                                                           const Extents& e) {
    const int before = matrix_of(position, e) * tiles_m(e) * tiles_n(e);
    return Dense::Position(tiles_m(e), tiles_n(e), position.tile - before, 0, e.order);
  }
};

}  // namespace gemm::walk
