// RMSNorm as a source: y = x * rstd * weight, rstd = 1 / sqrt(mean of the row's x^2 + eps).
//
// The sum of a row has one order, whatever thread block forms it: 1024 sums of 4 neighbouring
// columns each (columns 4 l .. 4 l + 3, then 4096 further on, ...), every square added by one fma
// in the order of the columns; then halves fold onto each other, s[l] += s[l + n] for n = 512, 256,
// ..
// 1. A block of kThreads threads keeps 1024 / kThreads of them in each, so that the first folds are
// of one thread, the next of shared memory, the last of a warp.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/fused.cuh"
#endif

namespace quantize {

constexpr int kRowSums = 1024;

template <int kThreads, int kVectors>
struct RowSquares {
  static constexpr int kAll = kRowSums / kThreads;                 // sums of a thread
  static constexpr int kKept = kVectors < kAll ? kVectors : kAll;  // not zero for want of vectors
  static constexpr int kWarps = kThreads / 32;
  static_assert(kAll * kThreads == kRowSums, "threads are a power of two of at most 1024");
  float sum[kKept];

  __device__ __forceinline__ RowSquares() {
#pragma unroll
    for (int k = 0; k < kKept; ++k) sum[k] = 0.0f;
  }

  // The thread's vectors of a tile: vector i is kThreads vectors behind vector i - 1.
  __device__ __forceinline__ void add(const Vector (&x)[kVectors]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float value = __uint_as_float(x[i].word[e]);
        sum[i % kKept] = __fmaf_rn(value, value, sum[i % kKept]);
      }
    }
  }

  // The row's sum, in every thread. `shared`: kThreads words. Holds one barrier.
  __device__ __forceinline__ float total(float* shared) {
#pragma unroll
    for (int n = kAll / 2; n > 0; n /= 2) {
#pragma unroll
      for (int k = 0; k < n && k + n < kKept; ++k) sum[k] = __fadd_rn(sum[k], sum[k + n]);
    }
    float one = sum[0];
    if constexpr (kWarps > 1) {
      shared[threadIdx.x] = one;
      __syncthreads();
      float of[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) of[w] = shared[32 * w + threadIdx.x % 32];
#pragma unroll
      for (int n = kWarps / 2; n > 0; n /= 2) {
#pragma unroll
        for (int w = 0; w < n; ++w) of[w] = __fadd_rn(of[w], of[w + n]);
      }
      one = of[0];
    }
#pragma unroll
    for (int n = 16; n > 0; n /= 2) one = __fadd_rn(one, __shfl_xor_sync(0xffffffffu, one, n));
    return one;
  }
};

__device__ __forceinline__ float reciprocal_rms(float squares, i64 cols, float epsilon) {
  return octile_rsqrt(__fadd_rn(__fdiv_rn(squares, static_cast<float>(cols)), epsilon));
}

// One of E's inputs by itself, as FusedInput's policy.
template <typename E, int kInput>
struct OnlyInput {
  static constexpr int kFirst = kInput;
  static constexpr int kInputs = 1;
  static constexpr int kType = E::kType;
  static constexpr bool kHalves = false;
  static constexpr bool kWeight = E::kWeight;
  static constexpr bool kRowFactor = false;
  static constexpr bool kTap = false;
  template <int kPart>
  static __device__ __forceinline__ float value(float x, float, float, float) {
    return x;
  }
};

}  // namespace quantize
