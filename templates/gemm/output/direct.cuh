// Output policy: D straight from registers, in the elements of Element. The policy needs no shared
// memory, which leaves it to the ring. Four lanes write neighbouring pairs of columns of a row: 16
// contiguous bytes of 16-bit elements, 32 bytes of fp32.
//
// Contract of an output policy. All threads of a consumer warpgroup call it together.
//   kStagingBytes          of the D region of shared memory that it uses
//   kTakesEmptySums        whether it is called for K = 0, where D is more than zero
//   kStoresOnce            whether it must store each element once, though tiles overlap
//   store(to, self, tile, limits, acc)  a tile's fp32 sums to D. It may change `acc`, and use the
//                          warpgroup's named barrier 1 + index and the D region, but no mbarrier.
//                          acc[strip][4 * j + i] is column 8 * j + 2 * (lane % 4) + (i & 1) of row
//                          lane / 4 + 8 * (i >> 1) of the warp's 16 rows (the WGMMA layout).
//   store_four(to, self, tile, row, column, end, sum)  four sums of a thread, two in each of the
//                          rows `row` and `row + 8`, for a split K. `column` is the first of the
//                          eight that four lanes share. No barrier.
//   finish()               before the CTA ends
//
// Contract of an element. It has no state.
//   Stored                 the type of D's elements
//   kAdds                  whether put_if adds to D: the preceding kernels must have ended, and
//                          each element is stored once
//   put_if(exist, p, x, y) stores two sums as the elements at p and p + 1, if these exist. Returns
//                          whether both are finite as stored, and true if they do not exist.
//   is_finite(x)           whether x is finite as stored; elements that read D have none
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

// kSentry: the problem has a sentry.
template <typename Element, bool kSentry>
struct Direct {
  enum : int { kStagingBytes = 0, kTakesEmptySums = false, kStoresOnce = Element::kAdds };
  using Stored = typename Element::Stored;

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    if constexpr (Element::kAdds) wait_for_previous_kernel();
    const int row = tile.m0 + self.index * kRowsPerConsumer;
    const int end = min(limits.m, tile.m0 + cfg::kBlockM);
    bool finite = true;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      finite &= store_strip<2 * kSums>(acc[strip], static_cast<Stored*>(to.d), to.ldd,
                                       row + strip * 64 + self.warp * 16, tile, end, limits.n);
    }
    if (kSentry && !finite) *to.sentry = 1;
  }

  __device__ static __forceinline__ void store_four(const Destination& to,
                                                    const ConsumerThread& self, const Tile& tile,
                                                    int row, int column, int end,
                                                    const Floats4& sum) {
    if constexpr (Element::kAdds) wait_for_previous_kernel();
    Stored* p = static_cast<Stored*>(to.d) + row * to.ldd + column + 2 * (self.lane % 4);
    bool finite = true;
    finite &= Element::put_if(is_stored(tile, row, end), p, sum.value[0], sum.value[1]);
    finite &=
        Element::put_if(is_stored(tile, row + 8, end), p + 8 * to.ldd, sum.value[2], sum.value[3]);
    if (kSentry && !finite) *to.sentry = 1;
  }

  __device__ static __forceinline__ void finish() {}

 private:
  __device__ static __forceinline__ bool is_stored(const Tile& tile, int row, int end) {
    return row < end && (!kStoresOnce || row >= tile.own_row);
  }

  // `row` is the warp's first row.
  template <int kColumns>
  __device__ static __forceinline__ bool store_strip(const float (&acc)[kColumns / 2], Stored* d,
                                                     i64 ldd, int row, const Tile& tile, int end,
                                                     int n) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row0 = row + lane / 4;
    bool finite = true;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (tile.n0 + 8 * j >= n) break;  // n is a multiple of 8
      Stored* p = d + row0 * ldd + tile.n0 + 8 * j + 2 * (lane % 4);
      finite &= Element::put_if(is_stored(tile, row0, end), p, acc[4 * j], acc[4 * j + 1]);
      finite &= Element::put_if(is_stored(tile, row0 + 8, end), p + 8 * ldd, acc[4 * j + 2],
                                acc[4 * j + 3]);
    }
    return finite;
  }
};

}  // namespace gemm::output
