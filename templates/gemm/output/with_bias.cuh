// Output policy: adds a bias of one value a column to the fp32 sums, then stores them by the policy
// Base. Value is the bias's type: float, or u16 for bf16.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#endif

namespace gemm::output {

template <typename Base, typename Value>
struct WithBias : Base {
  enum : int { kTakesEmptySums = true };

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    wait_for_previous_kernel();
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const int column = tile.n0 + 8 * j;
      if (column >= limits.n) break;  // n is a multiple of 8
      float left, right;
      load(to, column + 2 * (self.lane % 4), left, right);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        acc[strip][4 * j + 0] = __fadd_rn(acc[strip][4 * j + 0], left);
        acc[strip][4 * j + 1] = __fadd_rn(acc[strip][4 * j + 1], right);
        acc[strip][4 * j + 2] = __fadd_rn(acc[strip][4 * j + 2], left);
        acc[strip][4 * j + 3] = __fadd_rn(acc[strip][4 * j + 3], right);
      }
    }
    Base::store(to, self, tile, limits, acc);
  }

  __device__ static __forceinline__ void store_four(const Destination& to,
                                                    const ConsumerThread& self, const Tile& tile,
                                                    int row, int column, int end,
                                                    const Floats4& sum,
                                                    typename Base::Watching& watch) {
    wait_for_previous_kernel();
    float left, right;
    load(to, column + 2 * (self.lane % 4), left, right);
    Floats4 biased = sum;
    biased.value[0] = __fadd_rn(sum.value[0], left);
    biased.value[1] = __fadd_rn(sum.value[1], right);
    biased.value[2] = __fadd_rn(sum.value[2], left);
    biased.value[3] = __fadd_rn(sum.value[3], right);
    Base::store_four(to, self, tile, row, column, end, biased, watch);
  }

 private:
  // Loads the bias of two neighbouring columns.
  __device__ static __forceinline__ void load(const Destination& to, int column, float& left,
                                              float& right) {
    const Value* p = static_cast<const Value*>(to.bias) + column;
    if constexpr (sizeof(Value) == 2) {
      const u32 pair = *reinterpret_cast<const u32*>(p);
      left = __uint_as_float(pair << 16);
      right = __uint_as_float(pair & 0xffff0000u);
    } else {
      const Floats2 pair = load_global_8(p);
      left = pair.value[0];
      right = pair.value[1];
    }
  }
};

}  // namespace gemm::output
