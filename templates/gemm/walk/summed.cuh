// Walk policy: the tiles of one D that sums the GEMMs of a batch, in order. dense.cuh has the
// contract. So K is split into panels, which are the matrices of A and B: K-blocks walk through
// them, and each panel begins with a new K-block. The maps of A and B have three dimensions:
// columns, rows and panels, each of its own stride. TMA zero-fills the last K-block of a panel.
// Scales of the panels follow each other, like those of one operand.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/walk/dense.cuh"
#include "lib/tma_3d.cuh"
#endif

namespace gemm::walk {

struct Summed : Dense {
  enum : bool { kBatched = true, kOwnRanges = true };
  static_assert(kClusterSize == 1 && !kHasTail, "D has whole tiles, one for each CTA");

  struct Position : Dense::Position {
    int blocks;  // of all panels
  };

  __device__ static __forceinline__ Position first(const Extents& e, const SharedMemory& smem) {
    return {Dense::first(e, smem), e.groups * ceil_div(e.k, 128)};
  }
  __device__ static __forceinline__ KRange k_range(const Extents& e, int) {
    return {0, e.groups * ceil_div(e.k, 128)};
  }
  __device__ static __forceinline__ KRange k_range_of(const Position& position) {
    return {0, position.blocks};
  }

  __device__ static __forceinline__ i64 scales_before(const Source&, const Tile&) { return 0; }
  __device__ static __forceinline__ void load_a(u32 to, const TensorMap* map, const Tile& tile,
                                                int k, u32 full) {
    load(to, map, panel_blocks(map), k, tile.m0, full);
  }
  __device__ static __forceinline__ void load_b(u32 to, const TensorMap* map, const Tile&, int k,
                                                int row, u32 full) {
    load(to, map, panel_blocks(map - 1), k, row, full);
  }
  // D is the first matrix of its map.
  __device__ static __forceinline__ MatrixDestination destination_of(const Destination& to,
                                                                     const Source&, const Tile&) {
    return MatrixDestination{to, 0};
  }

 private:
  // Returns the K-blocks of a panel, by the map of A, with which the kernel's argument begins; the
  // map of B follows.
  __device__ static __forceinline__ int panel_blocks(const TensorMap* a_map) {
    return ceil_div(reinterpret_cast<const Arguments*>(a_map)->k, 128);
  }
  __device__ static __forceinline__ void load(u32 to, const TensorMap* map, int blocks, int k,
                                              int row, u32 full) {
    const int block = k / 128;
    const int panel = block / blocks;
    tma::load_3d(to, map, (block - panel * blocks) * 128, row, panel, full);
  }
};

}  // namespace gemm::walk
