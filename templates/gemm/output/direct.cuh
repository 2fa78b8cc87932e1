// Output policy: D straight from registers, in the elements of Element. The policy needs no shared
// memory, which leaves it to the ring. Four lanes write neighbouring pairs of columns of a row: 16
// contiguous bytes of 16-bit elements, 32 bytes of fp32.
//
// Contract of an output policy. All threads of a consumer warpgroup call it together.
//   kStagingBytes          of the D region of shared memory that it uses
//   kTakesEmptySums        whether it is called for K = 0, where D is more than zero
//   kStoresOnce            whether it must store each element once, though tiles overlap
//   kCountsOnce            whether it must count each element once
//   store(to, self, tile, limits, acc)  a tile's fp32 sums to D. It may change `acc`, and use the
//                          warpgroup's named barrier 1 + index and the D region, but no mbarrier.
//                          acc[strip][4 * j + i] is column 8 * j + 2 * (lane % 4) + (i & 1) of row
//                          lane / 4 + 8 * (i >> 1) of the warp's 16 rows (the WGMMA layout). These
//                          begin kWarpRows behind the next lower warp's and kStripStep behind those
//                          of the strip before. Boxes of D: ConsumerThread::box.
//                          tile.n0 is the warp's first column, which is the tile's unless warps
//                          share its columns (kWarpsAcross).
//   Watching               what a thread sees of a tile: Watch of watch.cuh
//   store_four(to, self, tile, row, column, end, sum, watch)  four sums of a thread, two in each of
//                          the rows `row` and `row + 8`, for a split K. `column` is the first of
//                          the eight that four lanes share. No barrier. The caller reports what
//                          `watch` has seen.
//   finish()               before the CTA ends
//   kPrefetchesD           whether the copy thread calls prefetch(to, tile, limits, block) for each
//                          K-block of a tile, counted from 0
//
// Contract of an element. It has no state.
//   Stored                 the type of D's elements
//   put_if(exist, p, x, y) stores two sums as the elements at p and p + 1, if these exist. Returns
//                          whether both are finite as stored, and true if they do not exist.
//   pack(sums, pairs)      of 16-bit elements: eight sums as four pairs
//   see(pair, seen)        of 16-bit elements: makes a half of `seen` NaN if that of the pair is
//   not
//                          finite
//   kAdds                  whether sums are added to D: the preceding kernels must have ended, and
//                          each element is stored once. Such an element has also
//   Old load_if(exist, p)  reads the elements at p and p + 1, if these exist
//   add(old, x, y)         adds them to two sums
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/output/watch.cuh"
#endif

namespace gemm::output {

// kSentry: the problem's sentry.
template <typename Element, int kSentry>
struct Direct {
  enum : int {
    kStagingBytes = 0,
    kTakesEmptySums = false,
    kStoresOnce = Element::kAdds,
    kCountsOnce = kSentry == kSquaresSentry,
    kPrefetchesD = false
  };
  using Stored = typename Element::Stored;
  using Watching = Watch<kSentry>;

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    if constexpr (Element::kAdds) wait_for_previous_kernel();
    const int row = tile.m0 + self.first_row();
    const int end = min(limits.m, tile.m0 + cfg::kBlockM);
    Watching watch;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      Stored* d = static_cast<Stored*>(to.d);
      const int first = row + strip * kStripStep + self.warp * kWarpRows;
      if constexpr (Element::kAdds) {
        add_strip<2 * kSums>(acc[strip], d, to.ldd, first, tile, end, limits.n, watch);
      } else {
        store_strip<2 * kSums>(acc[strip], d, to.ldd, first, tile, end, limits.n, watch);
      }
    }
    watch.report(to, self);
  }

  __device__ static __forceinline__ void store_four(const Destination& to,
                                                    const ConsumerThread& self, const Tile& tile,
                                                    int row, int column, int end,
                                                    const Floats4& sum, Watching& watch) {
    if constexpr (Element::kAdds) wait_for_previous_kernel();
    Stored* p = static_cast<Stored*>(to.d) + row * to.ldd + column + 2 * (self.lane % 4);
    const Row upper = row_of(tile, row, end), lower = row_of(tile, row + 8, end);
    if constexpr (Element::kAdds) {
      const auto old_upper = Element::load_if(upper.stored, p);
      const auto old_lower = Element::load_if(lower.stored, p + 8 * to.ldd);
      add(upper, true, p, old_upper, sum.value[0], sum.value[1], watch);
      add(lower, true, p + 8 * to.ldd, old_lower, sum.value[2], sum.value[3], watch);
    } else {
      put(upper, true, p, sum.value[0], sum.value[1], watch);
      put(lower, true, p + 8 * to.ldd, sum.value[2], sum.value[3], watch);
    }
  }

  __device__ static __forceinline__ void finish() {}

  // Whether a row is stored, and whether its squares count.
  struct Row {
    bool stored, counts;
  };
  __device__ static __forceinline__ Row row_of(const Tile& tile, int row, int end) {
    const bool stored = row < end && (!kStoresOnce || row >= tile.own_row);
    return {stored, stored && (!kCountsOnce || row >= tile.own_row)};
  }

  // Stores four sums of a group of 8 columns, of which `d` is the first in the upper row.
  __device__ static __forceinline__ void put_four(const float* sums, Stored* d, i64 ldd,
                                                  const Row& upper, const Row& lower,
                                                  Watching& watch) {
    Stored* p = d + 2 * (static_cast<int>(threadIdx.x) % 4);
    put(upper, true, p, sums[0], sums[1], watch);
    put(lower, true, p + 8 * ldd, sums[2], sums[3], watch);
  }

 private:
  // Stores two sums, if the row and the columns exist.
  __device__ static __forceinline__ void put(const Row& row, bool columns, Stored* p, float x,
                                             float y, Watching& watch) {
    watch.see(Element::put_if(row.stored & columns, p, x, y));
    watch.square(row.counts & columns, x, y);
  }
  // Adds two sums to D.
  template <typename Old>
  __device__ static __forceinline__ void add(const Row& row, bool columns, Stored* p,
                                             const Old& old, float x, float y, Watching& watch) {
    Element::add(old, x, y);
    put(row, columns, p, x, y, watch);
  }

  // Adds a strip to D. `row` is the warp's first row. The old values of some column groups are read
  // together, because each read takes as long as all.
  template <int kColumns>
  __device__ static __forceinline__ void add_strip(const float (&acc)[kColumns / 2], Stored* d,
                                                   i64 ldd, int row, const Tile& tile, int end,
                                                   int n, Watching& watch) {
    constexpr int kTogether = 4;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row0 = row + lane / 4;
    const Row upper = row_of(tile, row0, end), lower = row_of(tile, row0 + 8, end);
    Stored* p = d + row0 * ldd + tile.n0 + 2 * (lane % 4);
#pragma unroll
    for (int first = 0; first < kColumns / 8; first += kTogether) {
      if (tile.n0 + 8 * first >= n) break;  // n is a multiple of 8
      typename Element::Old old[kTogether][2];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int j = first + i;
        const bool exists = j < kColumns / 8 && tile.n0 + 8 * j < n;
        old[i][0] = Element::load_if(upper.stored & exists, p + 8 * j);
        old[i][1] = Element::load_if(lower.stored & exists, p + 8 * ldd + 8 * j);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int j = first + i;
        if (j >= kColumns / 8) break;
        const bool exists = tile.n0 + 8 * j < n;
        add(upper, exists, p + 8 * j, old[i][0], acc[4 * j], acc[4 * j + 1], watch);
        add(lower, exists, p + 8 * ldd + 8 * j, old[i][1], acc[4 * j + 2], acc[4 * j + 3], watch);
      }
    }
  }

  // Stores a strip. `row` is the warp's first row.
  template <int kColumns>
  __device__ static __forceinline__ void store_strip(const float (&acc)[kColumns / 2], Stored* d,
                                                     i64 ldd, int row, const Tile& tile, int end,
                                                     int n, Watching& watch) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row0 = row + lane / 4;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (tile.n0 + 8 * j >= n) break;  // n is a multiple of 8
      Stored* p = d + row0 * ldd + tile.n0 + 8 * j + 2 * (lane % 4);
      put(row_of(tile, row0, end), true, p, acc[4 * j], acc[4 * j + 1], watch);
      put(row_of(tile, row0 + 8, end), true, p + 8 * ldd, acc[4 * j + 2], acc[4 * j + 3], watch);
    }
  }
};

}  // namespace gemm::output
