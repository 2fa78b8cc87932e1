// RMSNorm as a source: y = x * rstd * weight, rstd = 1 / sqrt(mean of the row's x^2 + eps).
//
// The sum of a row has one order in every thread block. There are 1024 sums of 4
// neighbouring columns each (columns 4 l .. 4 l + 3, then 4096 further on, ...), and one fma adds
// every square in the order of the columns. Then halves are added to each other, s[l] += s[l + n]
// for n = 512, 256, down to 1. Each of kThreads threads keeps 1024 / kThreads sums. The first
// additions therefore happen within a thread, the next through shared memory, then within a warp.
// If a thread holds neighbours, the last happens within a thread again.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/fused.cuh"
#endif

namespace quantize {

constexpr int kRowSums = 1024;

// A thread holds kVectors vectors of 4 columns. kTouching of them lie side by side and form a
// piece; pieces lie kThreads pieces apart.
template <int kThreads, int kVectors, int kTouching>
struct RowSquares {
  static constexpr int kAll = kRowSums / kThreads / kTouching;  // pieces with sums of their own
  static constexpr int kPieces = kVectors / kTouching;
  static constexpr int kKept = kPieces < kAll ? kPieces : kAll;  // sums that are not always zero
  static constexpr int kWarps = kThreads / 32;
  static_assert(kAll * kThreads * kTouching == kRowSums, "threads are a power of two");
  float sum[kKept][kTouching];

  __device__ __forceinline__ RowSquares() {
#pragma unroll
    for (int k = 0; k < kKept * kTouching; ++k) sum[k / kTouching][k % kTouching] = 0.0f;
  }

  // Adds the thread's vectors of a tile.
  __device__ __forceinline__ void add(const Vector (&x)[kVectors]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float& one = sum[i / kTouching % kKept][i % kTouching];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float value = __uint_as_float(x[i].word[e]);
        one = __fmaf_rn(value, value, one);
      }
    }
  }

  // Adds the two vectors of a piece whose number is known only at run time.
  __device__ __forceinline__ void add_piece(int piece, const Vector& first, const Vector& second) {
    static_assert(kTouching == 2, "pieces are pairs of vectors");
    const int own = piece % kKept;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float a = __uint_as_float(first.word[e]), b = __uint_as_float(second.word[e]);
        if (k == own) sum[k][0] = __fmaf_rn(a, a, sum[k][0]);
        if (k == own) sum[k][1] = __fmaf_rn(b, b, sum[k][1]);
      }
    }
  }

  // Returns the row's sum in every thread. `shared`: kThreads * kTouching words. Holds one barrier.
  __device__ __forceinline__ float total(float* shared) {
#pragma unroll
    for (int n = kAll / 2; n > 0; n /= 2) {
#pragma unroll
      for (int k = 0; k < n && k + n < kKept; ++k) {
#pragma unroll
        for (int t = 0; t < kTouching; ++t) sum[k][t] = __fadd_rn(sum[k][t], sum[k + n][t]);
      }
    }
    float one[kTouching];
#pragma unroll
    for (int t = 0; t < kTouching; ++t) one[t] = sum[0][t];
    if constexpr (kWarps > 1) {
#pragma unroll
      for (int t = 0; t < kTouching; ++t) shared[kThreads * t + threadIdx.x] = one[t];
      __syncthreads();
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
    if constexpr (kTouching == 1) {
      if constexpr (kWarps > 1) one[0] = fold_warps(shared + lane);
      return fold_lanes<16>(one[0]);
    } else {
      // The last 32 sums of both vectors are folded at once, those of the first by the lower lanes.
      const bool upper = lane >= 16;
      float mine, other;
      if constexpr (kWarps > 1) {
        const float* const first = shared + (upper ? kThreads : 0) + lane % 16;
        mine = fold_warps(first);
        other = fold_warps(first + 16);
      } else {
        mine = upper ? one[1] : one[0];
        other = __shfl_xor_sync(0xffffffffu, upper ? one[0] : one[1], 16);
      }
      mine = fold_lanes<8>(__fadd_rn(mine, other));
      return __fadd_rn(mine, __shfl_xor_sync(0xffffffffu, mine, 16));
    }
  }

 private:
  // Returns the sum over the warps of one lane's sums; `first`: the first warp's.
  static __device__ __forceinline__ float fold_warps(const float* first) {
    float of[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of[w] = first[32 * w];
#pragma unroll
    for (int n = kWarps / 2; n > 0; n /= 2) {
#pragma unroll
      for (int w = 0; w < n; ++w) of[w] = __fadd_rn(of[w], of[w + n]);
    }
    return of[0];
  }
  // Returns the sum over lanes that are kFirst, kFirst / 2, .. 1 apart.
  template <int kFirst>
  static __device__ __forceinline__ float fold_lanes(float one) {
#pragma unroll
    for (int n = kFirst; n > 0; n /= 2) {
      one = __fadd_rn(one, __shfl_xor_sync(0xffffffffu, one, n));
    }
    return one;
  }
};

__device__ __forceinline__ float reciprocal_rms(float squares, i64 cols, float epsilon) {
  return octile_rsqrt(__fadd_rn(__fdiv_rn(squares, static_cast<float>(cols)), epsilon));
}

// A policy of FusedInput: one of E's inputs by itself.
template <typename E, int kInput>
struct OnlyInput {
  static constexpr int kFirst = kInput;
  static constexpr int kInputs = 1;
  static constexpr int kType = E::kType;
  static constexpr bool kHalves = false;
  static constexpr bool kWeight = E::kWeight;
  static constexpr bool kRowFactor = false;
  static constexpr bool kTap = false;
  static constexpr bool kLooksUp = false;
  static constexpr u32 kTableHalf = 0;
  static __device__ __forceinline__ float looked_up(float x) { return x; }
  template <int kPart>
  static __device__ __forceinline__ float value(float x, float, float, float, float) {
    return x;
  }
};

}  // namespace quantize
