// The words of MX for scale/inside_tcgen05.cuh: a word is the four E8M0 codes of a row in a
// K-block, one for each step of 32. Their memory layout and the way they are gathered are those of
// the policies that promote (mx_scales.cuh).
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/scale/inside_tcgen05.cuh"
#include "gemm/scale/mx_scales.cuh"
#endif

namespace gemm::scale {

template <int kRowsOfB>
struct MxWords {
  using Scales = MxScales<kRowsOfB>;
  using Place = typename Scales::LaneWords::Place;
  typename Scales::LaneWords raw;

  template <typename Walk>
  __device__ static __forceinline__ Place place(const Source& from, const Extents& e,
                                                const Tile& tile) {
    return Scales::LaneWords::template place<Walk>(from, e, tile);
  }
  __device__ __forceinline__ void load(const Place& place, int block, int lane) {
    raw.load(place, block, lane);
  }
  __device__ __forceinline__ u32 a(int i, int) const { return raw.a[i]; }
  // If a scale serves 32 columns, lane i has that of columns 32 * i to 32 * i + 31.
  __device__ __forceinline__ u32 b(int i, int) const {
    if (32 * i >= cfg::kBlockN) return 0;
    if constexpr (kRowsOfB > 1) return __shfl_sync(0xffffffffu, raw.b[0], i);
    return raw.b[i < Scales::kWordsB ? i : 0];
  }
};

}  // namespace gemm::scale
