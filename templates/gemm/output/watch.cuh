// A kernel's reports of D: whether every element is finite, and the sum of their
// squares.
//
// A squares sentry adds to 64-bit words behind the sentry's (octile_squares of octile.h). A warp's
// part of a tile is summed in fp32, in the order that docs/numerics.md states ("Squares"). The
// warps' sums are added as integers, in any order and to the same bits.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "lib/sentry.cuh"
#endif

namespace gemm::output {

// The values of GemmProblem's Sentry.
enum : int { kNoSentry, kWordSentry, kSquaresSentry };

// Makes the columns from `columns` on zero, because what lies there is no product of D's. The count
// is a multiple of 8.
template <int kSums>
__device__ __forceinline__ void clear_columns(float (&sums)[kSums], int columns) {
  if (columns >= 2 * kSums) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (i / 4 * 8 >= columns) sums[i] = 0.0f;
  }
}

// A thread's record of its share of a tile.
template <int kSentry>
struct Watch {
  bool finite = true;
  float squares = 0.0f;

  __device__ __forceinline__ void see(bool is_finite) {
    if constexpr (kSentry != kNoSentry) finite &= is_finite;
  }
  // Adds the squares of two elements, if they count.
  __device__ __forceinline__ void square(bool count, float x, float y) {
    if constexpr (kSentry != kSquaresSentry) return;
    const float sum = __fmaf_rn(y, y, __fmaf_rn(x, x, squares));
    squares = count ? sum : squares;
  }

  // Looks at fp32 sums as they are stored. Columns outside D are zero.
  template <int kSums>
  __device__ __forceinline__ void see_sums(const ConsumerThread& self, const Tile& tile,
                                           const Limits& limits,
                                           const float (&acc)[kStrips][kSums]) {
    if constexpr (kSentry == kNoSentry) return;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      // A NaN if a sum was none or infinite, else zero.
      float upper = 0.0f, lower = 0.0f;
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        upper = __fmaf_rn(acc[strip][i + 1], 0.0f, __fmaf_rn(acc[strip][i], 0.0f, upper));
        lower = __fmaf_rn(acc[strip][i + 3], 0.0f, __fmaf_rn(acc[strip][i + 2], 0.0f, lower));
      }
      see_rows(self, tile, limits, strip, upper == 0.0f, lower == 0.0f);
    }
  }

  // Takes what was seen of a thread's two rows of a strip. Rows outside D do not count.
  __device__ __forceinline__ void see_rows(const ConsumerThread& self, const Tile& tile,
                                           const Limits& limits, int strip, bool upper,
                                           bool lower) {
    const int row = row_of(self, tile, strip), end = end_of(tile, limits);
    see((upper | (row >= end)) & (lower | (row + 8 >= end)));
  }

  // Adds the squares of a tile's sums. Columns outside D are zero, and rows that an earlier tile
  // has do not count.
  template <int kSums>
  __device__ __forceinline__ void square_sums(const ConsumerThread& self, const Tile& tile,
                                              const Limits& limits,
                                              const float (&acc)[kStrips][kSums]) {
    if constexpr (kSentry != kSquaresSentry) return;
    const int end = end_of(tile, limits);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const int row = row_of(self, tile, strip);
      float upper = 0.0f, lower = 0.0f;
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        upper = __fmaf_rn(acc[strip][i + 1], acc[strip][i + 1],
                          __fmaf_rn(acc[strip][i], acc[strip][i], upper));
        lower = __fmaf_rn(acc[strip][i + 3], acc[strip][i + 3],
                          __fmaf_rn(acc[strip][i + 2], acc[strip][i + 2], lower));
      }
      if (row >= tile.own_row && row < end) squares = __fadd_rn(squares, upper);
      if (row + 8 >= tile.own_row && row + 8 < end) squares = __fadd_rn(squares, lower);
    }
  }

  // All threads of a consumer warpgroup, behind a tile.
  __device__ __forceinline__ void report(const Destination& to, const ConsumerThread& self) const {
    if constexpr (kSentry == kNoSentry) return;
    if (!finite) *to.sentry = 1;
    if constexpr (kSentry == kSquaresSentry) {
      float sum = squares;
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
      }
      u64* words = reinterpret_cast<u64*>(to.sentry + 2) + blockIdx.x % 8 * 16;
      if (self.lane == 0) add_exactly(words, sum);
    }
  }

 private:
  __device__ static __forceinline__ int row_of(const ConsumerThread& self, const Tile& tile,
                                               int strip) {
    return tile.m0 + self.first_row() + strip * kStripStep + self.warp * kWarpRows + self.lane / 4;
  }
  __device__ static __forceinline__ int end_of(const Tile& tile, const Limits& limits) {
    return min(limits.m, tile.m0 + cfg::kBlockM);
  }

  // Adds a sum that is not negative to the words. Word i < 9 counts units of 2^(32 * i - 149), and
  // each addition is less than 2^32 of them. Word 9 counts sums that are not finite.
  __device__ static __forceinline__ void add_exactly(u64* words, float sum) {
    constexpr u32 kHidden = 0x800000u;
    const u32 bits = __float_as_uint(sum);
    if (bits >= 0x7f800000u) {
      add_global_u64(words + 9, 1);
      return;
    }
    const u32 exponent = bits >> 23;  // exponent over 2^-149, plus 1 unless subnormal
    const u32 units = exponent == 0 ? bits : (bits & (kHidden - 1)) | kHidden;
    const u32 shift = exponent == 0 ? 0 : exponent - 1;
    const u64 shifted = static_cast<u64>(units) << shift % 32;
    const u32 low = static_cast<u32>(shifted), high = static_cast<u32>(shifted >> 32);
    if (low != 0) add_global_u64(words + shift / 32, low);
    if (high != 0) add_global_u64(words + shift / 32 + 1, high);
  }
};

}  // namespace gemm::output
