// The sentry of output policies that store from shared memory: they look at the sums in registers.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm::output {

// Sets the sentry if a sum is not finite as stored. Rows and columns outside D do not count. `acc`
// is as an output policy gets it; is_finite is the element's.
template <typename Element, int kSums>
__device__ __forceinline__ void watch(const Destination& to, const ConsumerThread& self,
                                      const Tile& tile, const Limits& limits,
                                      const float (&acc)[kStrips][kSums]) {
  const int end = min(limits.m, tile.m0 + cfg::kBlockM);
  bool finite = true;
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    const int row =
        tile.m0 + self.index * kRowsPerConsumer + strip * 64 + self.warp * 16 + self.lane / 4;
    bool upper = true, lower = true;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      if (tile.n0 + 8 * j >= limits.n) break;  // n is a multiple of 8
      upper &= Element::is_finite(acc[strip][4 * j]) & Element::is_finite(acc[strip][4 * j + 1]);
      lower &=
          Element::is_finite(acc[strip][4 * j + 2]) & Element::is_finite(acc[strip][4 * j + 3]);
    }
    finite &= (upper | (row >= end)) & (lower | (row + 8 >= end));
  }
  if (!finite) *to.sentry = 1;
}

}  // namespace gemm::output
