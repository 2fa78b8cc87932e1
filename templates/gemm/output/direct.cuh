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
//   kPrefetchesD           whether the copy thread calls prefetch(to, tile, limits, block) for each
//                          K-block of a tile, counted from 0
//
// Contract of an element. It has no state.
//   Stored                 the type of D's elements
//   put_if(exist, p, x, y) stores two sums as the elements at p and p + 1, if these exist. Returns
//                          whether both are finite as stored, and true if they do not exist.
//   is_finite(x)           whether x is finite as stored
//   kAdds                  whether sums are added to D: the preceding kernels must have ended, and
//                          each element is stored once. Such an element has no is_finite, and
//   Old load_if(exist, p)  reads the elements at p and p + 1, if these exist
//   put_if(exist, p, old, x, y)  is what it has in place of the other put_if
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

// kSentry: the problem has a sentry.
template <typename Element, bool kSentry>
struct Direct {
  enum : int {
    kStagingBytes = 0,
    kTakesEmptySums = false,
    kStoresOnce = Element::kAdds,
    kPrefetchesD = false
  };
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
      Stored* d = static_cast<Stored*>(to.d);
      const int first = row + strip * 64 + self.warp * 16;
      if constexpr (Element::kAdds) {
        finite &= add_strip<2 * kSums>(acc[strip], d, to.ldd, first, tile, end, limits.n);
      } else {
        finite &= store_strip<2 * kSums>(acc[strip], d, to.ldd, first, tile, end, limits.n);
      }
    }
    if (kSentry && !finite) *to.sentry = 1;
  }

  __device__ static __forceinline__ void store_four(const Destination& to,
                                                    const ConsumerThread& self, const Tile& tile,
                                                    int row, int column, int end,
                                                    const Floats4& sum) {
    if constexpr (Element::kAdds) wait_for_previous_kernel();
    Stored* p = static_cast<Stored*>(to.d) + row * to.ldd + column + 2 * (self.lane % 4);
    const bool upper = is_stored(tile, row, end), lower = is_stored(tile, row + 8, end);
    bool finite = true;
    if constexpr (Element::kAdds) {
      const auto old_upper = Element::load_if(upper, p);
      const auto old_lower = Element::load_if(lower, p + 8 * to.ldd);
      finite &= Element::put_if(upper, p, old_upper, sum.value[0], sum.value[1]);
      finite &= Element::put_if(lower, p + 8 * to.ldd, old_lower, sum.value[2], sum.value[3]);
    } else {
      finite &= Element::put_if(upper, p, sum.value[0], sum.value[1]);
      finite &= Element::put_if(lower, p + 8 * to.ldd, sum.value[2], sum.value[3]);
    }
    if (kSentry && !finite) *to.sentry = 1;
  }

  __device__ static __forceinline__ void finish() {}

 private:
  __device__ static __forceinline__ bool is_stored(const Tile& tile, int row, int end) {
    return row < end && (!kStoresOnce || row >= tile.own_row);
  }

  // Adds a strip to D. `row` is the warp's first row. The old values of some column groups are read
  // together, because each read takes as long as all.
  template <int kColumns>
  __device__ static __forceinline__ bool add_strip(const float (&acc)[kColumns / 2], Stored* d,
                                                   i64 ldd, int row, const Tile& tile, int end,
                                                   int n) {
    constexpr int kTogether = 4;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row0 = row + lane / 4;
    const bool upper = is_stored(tile, row0, end), lower = is_stored(tile, row0 + 8, end);
    Stored* p = d + row0 * ldd + tile.n0 + 2 * (lane % 4);
    bool finite = true;
#pragma unroll
    for (int first = 0; first < kColumns / 8; first += kTogether) {
      if (tile.n0 + 8 * first >= n) break;  // n is a multiple of 8
      typename Element::Old old[kTogether][2];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int j = first + i;
        const bool exists = j < kColumns / 8 && tile.n0 + 8 * j < n;
        old[i][0] = Element::load_if(upper & exists, p + 8 * j);
        old[i][1] = Element::load_if(lower & exists, p + 8 * ldd + 8 * j);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int j = first + i;
        if (j >= kColumns / 8) break;
        const bool exists = tile.n0 + 8 * j < n;
        finite &= Element::put_if(upper & exists, p + 8 * j, old[i][0], acc[4 * j], acc[4 * j + 1]);
        finite &= Element::put_if(lower & exists, p + 8 * ldd + 8 * j, old[i][1], acc[4 * j + 2],
                                  acc[4 * j + 3]);
      }
    }
    return finite;
  }

  // Stores a strip. `row` is the warp's first row.
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
