// A layer norm again as the input of a kernel: x, and of every row its mean and rstd = 1 /
// sqrt(variance + eps), which an earlier pass has found.
//
//   y[r, c] = (x[r, c] - mean[r]) * rstd[r] * weight[c] + bias[c]
//
// The last product and the sum are one fma, as PyTorch's kernels compile it, so that y has the bits
// of their result. weight, bias and mean are args.more[0] to [2], rstd is args.rstd. E reads x
// alone; kViaBF16: y is rounded to bf16. A patch has few columns and many rows: its weights are
// loaded once.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/fused.cuh"
#endif

namespace quantize {

template <typename P, typename E, bool kViaBF16>
struct LayerNormInput : FusedInput<P, E> {
  using Base = FusedInput<P, E>;
  using Base::args;
  using Base::col;
  using Base::kElements;
  using Base::kLoadBytes;
  using Base::row;
  using typename Base::In;
  static_assert(!E::kHalves && !E::kTap && !P::kSideBySide && !P::kOfHalves,
                "a tile's transposed copy");

  __device__ __forceinline__ LayerNormInput(const Args& given, const P& patch)
      : Base(given, patch) {}

  // Loads the patch's values; elements outside the tensor become zeros.
  __device__ __forceinline__ void load(const P& patch, Vector (&v)[P::kVectors]) const {
    Base::load(patch, v);
#pragma unroll
    for (int g = 0; g < P::kGroups; ++g) {
      float weight[kElements], bias[kElements];
      load_row(0, patch, g, weight);
      load_row(1, patch, g, bias);
      const int count = patch.elements(g);
#pragma unroll
      for (int r = 0; r < P::kRows; ++r) {
        if (r >= patch.rows) continue;
        const float mean = mean_of(r), rstd = this->row_factor(r);
        Vector& one = v[r * P::kGroups + g];
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          const float x = __uint_as_float(one.word[e]);
          if (e < count) one.word[e] = normed(x, mean, rstd, weight[e], bias[e]);
        }
      }
    }
  }

  // Returns the bits of one element, computed again for the slow path.
  __device__ __forceinline__ u32 raw(int r, int g, int element) const {
    const i64 column = col + P::offset(g) + element;
    return normed(__uint_as_float(Base::raw(r, g, element)), mean_of(r), this->row_factor(r),
                  value_of(0, column), value_of(1, column));
  }

 private:
  static __device__ __forceinline__ u32 normed(float x, float mean, float rstd, float weight,
                                               float bias) {
    const float y = __fmaf_rn(__fmul_rn(__fsub_rn(x, mean), rstd), weight, bias);
    return kViaBF16 ? cast::to_bf16x2(y, 0.0f) & 0xffff0000u : __float_as_uint(y);
  }
  __device__ __forceinline__ float mean_of(int r) const {
    return __uint_as_float(
        memory::load_4(static_cast<const float*>(args.more[2]) + row + r * P::kRowStep));
  }
  // Returns the address of the k-th row of weights at a column.
  __device__ __forceinline__ const char* place(int k, i64 column) const {
    return static_cast<const char*>(args.more[k]) + column * In::kElementBytes;
  }
  __device__ __forceinline__ float value_of(int k, i64 column) const {
    return In::value(In::load(place(k, column)));
  }
  // Loads what the k-th row of weights has for group g's columns; those outside the tensor become
  // zeros.
  __device__ __forceinline__ void load_row(int k, const P& patch, int g,
                                           float (&values)[kElements]) const {
    const i64 column = col + P::offset(g);
    const int count = patch.elements(g);
    if (count == kElements && reinterpret_cast<u64>(place(k, column)) % kLoadBytes == 0) {
      const Vector in = Base::load_input(place(k, column));
#pragma unroll
      for (int e = 0; e < kElements; ++e) values[e] = In::value(In::raw(in, e));
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) values[e] = e < count ? value_of(k, column + e) : 0.0f;
    }
  }
};

}  // namespace quantize
