// Output policy: D in 16-bit elements straight from registers, in whole sectors of 32 bytes. It is
// for wide tiles where TMA does not store. direct.cuh has the contracts of an output policy and of
// an element.
//
// Four lanes hold pairs of neighbouring columns of a row, in groups of eight columns. An even
// lane takes the first of two groups and an odd lane the second: it gives its neighbour the pair of
// the other. Then the four lanes write 16 columns, eight bytes each.
//
//   lane        0        1        2        3                    0        1         2        3
//   group j     0  1     2  3     4  5     6  7       ->        0 .. 3             4 .. 7
//   group j+1   8  9    10 11    12 13    14 15                          8 .. 11            12 ..
//   15
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/output/direct.cuh"
#include "lib/memory.cuh"
#endif

namespace gemm::output {

// kSentry: the problem's sentry.
template <typename Element, int kSentry>
struct Sectors : Direct<Element, kSentry> {
  using Base = Direct<Element, kSentry>;
  using typename Base::Row;
  using typename Base::Stored;
  using typename Base::Watching;
  static_assert(sizeof(Stored) == 2 && !Element::kAdds, "other elements fill sectors themselves");

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    const int row = tile.m0 + self.first_row() + self.warp * kWarpRows + self.lane / 4;
    const int end = min(limits.m, tile.m0 + cfg::kBlockM);
    Watching watch;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const int first = row + strip * kStripStep;
      const Row upper = Base::row_of(tile, first, end), lower = Base::row_of(tile, first + 8, end);
      Stored* d = static_cast<Stored*>(to.d) + first * to.ldd + tile.n0;
#pragma unroll
      for (int j = 0; j < kSums / 4; j += 2) {
        const int columns = limits.n - tile.n0 - 8 * j;  // a multiple of 8
        if (columns <= 0) break;
        if (j + 1 == kSums / 4) {  // a group without a neighbour, of a warp with few columns
          Base::put_four(acc[strip] + 4 * j, d + 8 * j, to.ldd, upper, lower, watch);
          break;
        }
        see(acc[strip] + 4 * j, upper, lower, watch);
        if (columns > 8) see(acc[strip] + 4 * j + 4, upper, lower, watch);
        put(acc[strip] + 4 * j, d + 8 * j, to.ldd, upper.stored, lower.stored, columns);
      }
    }
    watch.report(to, self);
  }

 private:
  // Looks at a thread's four sums of a group.
  __device__ static __forceinline__ void see(const float* sums, const Row& upper, const Row& lower,
                                             Watching& watch) {
    watch.see(!upper.stored | (Element::is_finite(sums[0]) & Element::is_finite(sums[1])));
    watch.square(upper.counts, sums[0], sums[1]);
    watch.see(!lower.stored | (Element::is_finite(sums[2]) & Element::is_finite(sums[3])));
    watch.square(lower.counts, sums[2], sums[3]);
  }

  // Stores two groups, of which `columns` exist, in two rows. `d` is the first group's first column
  // in the upper row.
  __device__ static __forceinline__ void put(const float* sums, Stored* d, i64 ldd, bool upper,
                                             bool lower, int columns) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool odd = lane % 2;
    u32 pairs[4];  // upper and lower row of the first group, then of the second
    Element::pack(sums, pairs);
    Stored* p = d + (odd ? 8 : 0) + lane % 4 / 2 * 4;
    const bool exists = !odd | (columns > 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 keep = odd ? pairs[2 + half] : pairs[half];
      const u32 give = odd ? pairs[half] : pairs[2 + half];
      const u32 got = __shfl_xor_sync(0xffffffffu, give, 1);
      if ((half == 0 ? upper : lower) & exists) {
        memory::store_8(p + half * 8 * ldd, odd ? got : keep, odd ? keep : got);
      }
    }
  }
};

}  // namespace gemm::output
