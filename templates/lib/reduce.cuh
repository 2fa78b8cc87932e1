// Maxima of unsigned integers across the lanes of a warp. Without the sign bit, floats order as
// unsigned integers, so an amax is such a maximum. This file uses compiler intrinsics, no PTX.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace reduce {

__device__ __forceinline__ u32 max(u32 a, u32 b) { return a > b ? a : b; }

// The rounds of scatter_max. Lanes kDistance apart exchange halves of their kCount values. Once
// each has one value, they reduce it over the rest of the group. It is a recursion, so that every
// index is a constant and the values stay in registers.
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

// Computes kCount maxima over each group of kWidth consecutive lanes and leaves one in each lane.
// Returns the maximum of values[owned_index<kCount, kWidth>(lane)] over the lane's group. All 32
// lanes call it. It halves the values at each exchange, which takes kCount - 1 + log2(kWidth /
// kCount) shuffles instead of kCount * log2(kWidth).
template <int kCount, int kWidth>
__device__ __forceinline__ u32 scatter_max(u32 (&values)[kCount], u32 lane) {
  static_assert(kCount >= 1 && (kCount & (kCount - 1)) == 0, "kCount is a power of two");
  static_assert(kCount <= kWidth && kWidth <= 32 && (kWidth & (kWidth - 1)) == 0,
                "kWidth is a power of two in kCount..32");
  scatter_rounds<kCount, kWidth / 2>(values, lane);
  return values[0];
}

// Returns the index of the value that scatter_max leaves in a lane. Its lanes are consecutive.
template <int kCount, int kWidth>
__device__ __forceinline__ int owned_index(u32 lane) {
  return static_cast<int>(lane % kWidth) / (kWidth / kCount);
}

// Returns the first lane that owns value `index` in the group of `lane`.
template <int kCount, int kWidth>
__device__ __forceinline__ int owner_lane(u32 lane, int index) {
  return static_cast<int>(lane & ~static_cast<u32>(kWidth - 1)) + index * (kWidth / kCount);
}

// Returns in each lane the maximum over its group of kWidth lanes. The lanes of a group differ in
// the bits of (kWidth - 1) * kStride. All 32 lanes call it.
template <int kWidth, int kStride = 1>
__device__ __forceinline__ u32 lanes_max(u32 value) {
#pragma unroll
  for (int distance = kWidth / 2 * kStride; distance >= kStride; distance /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Returns the maximum over the thread block in every thread. `partials` is one word of shared
// memory for each warp (at most 32), written here. Its next use needs a barrier in between. All
// threads of the block call it, and kThreads is a multiple of 32. It contains one __syncthreads.
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
