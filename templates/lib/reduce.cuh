// Maxima of unsigned integers across the lanes of a warp.
// Magnitudes of floats order as unsigned integers once the sign bit is gone, so an amax is one of
// these. Compiler intrinsics only: no PTX here.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace reduce {

__device__ __forceinline__ u32 max(u32 a, u32 b) { return a > b ? a : b; }

// Rounds of scatter_max: lanes kDistance apart exchange halves of their kCount values, then, one
// value each, the rest of the group's maxima. A recursion, so that every index is a constant and
// the values stay in registers.
template <int kCount, int kDistance, int kSize>
__device__ __forceinline__ void scatter_rounds(u32 (&values)[kSize], u32 lane) {
  if constexpr (kCount > 1) {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane & kDistance) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const u32 sent = upper ? values[i] : values[i + kHalf];
      const u32 kept = upper ? values[i + kHalf] : values[i];
      values[i] = max(kept, __shfl_xor_sync(0xffffffffu, sent, kDistance));
    }
    scatter_rounds<kHalf, kDistance / 2>(values, lane);
  } else if constexpr (kDistance > 0) {
    values[0] = max(values[0], __shfl_xor_sync(0xffffffffu, values[0], kDistance));
    scatter_rounds<1, kDistance / 2>(values, lane);
  }
}

// kCount maxima over each group of kWidth consecutive lanes, one left per lane: returns the maximum
// of values[owned_index<kCount, kWidth>(lane)] over the lane's group. All 32 lanes. Halving the
// values at each exchange takes kCount - 1 + log2(kWidth / kCount) shuffles instead of kCount *
// log2(kWidth).
template <int kCount, int kWidth>
__device__ __forceinline__ u32 scatter_max(u32 (&values)[kCount], u32 lane) {
  static_assert(kCount >= 1 && (kCount & (kCount - 1)) == 0, "kCount is a power of two");
  static_assert(kCount <= kWidth && kWidth <= 32 && (kWidth & (kWidth - 1)) == 0,
                "kWidth is a power of two in kCount..32");
  scatter_rounds<kCount, kWidth / 2>(values, lane);
  return values[0];
}

// Which value scatter_max leaves in a lane; its lanes are consecutive.
template <int kCount, int kWidth>
__device__ __forceinline__ int owned_index(u32 lane) {
  return static_cast<int>(lane % kWidth) / (kWidth / kCount);
}

// The first lane that owns value `index` in the group of `lane`.
template <int kCount, int kWidth>
__device__ __forceinline__ int owner_lane(u32 lane, int index) {
  return static_cast<int>(lane & ~static_cast<u32>(kWidth - 1)) + index * (kWidth / kCount);
}

// Maximum over each group of kWidth lanes that differ in the bits of kWidth - 1 times kStride, in
// all of them. All 32 lanes.
template <int kWidth, int kStride = 1>
__device__ __forceinline__ u32 lanes_max(u32 value) {
#pragma unroll
  for (int distance = kWidth / 2 * kStride; distance >= kStride; distance /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Maximum over the thread block, in every thread. `partials`: one word of shared memory per warp
// (at most 32), written here; not to be reused without a barrier in between. All threads of the
// block; kThreads a multiple of 32. Holds one __syncthreads.
template <int kThreads>
__device__ __forceinline__ u32 block_max(u32 value, u32* partials) {
  constexpr u32 kWarps = kThreads / 32;
  static_assert(kWarps >= 1 && kWarps <= 32 && (kWarps & (kWarps - 1)) == 0,
                "a power of two of whole warps");
  const u32 lane = threadIdx.x % 32;
  const u32 warp_max = __reduce_max_sync(0xffffffffu, value);
  if (lane == 0) partials[threadIdx.x / 32] = warp_max;
  __syncthreads();
  // Lanes beyond kWarps read a partial twice, which changes no maximum.
  return __reduce_max_sync(0xffffffffu, partials[lane % kWarps]);
}

}  // namespace reduce
