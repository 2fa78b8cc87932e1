// The tensor core of an emulated cluster. Its sums are exact if fp32 can hold every partial sum.
#pragma once

#include <cstdint>
#include <string_view>

namespace octile::emulation {

// A WGMMA group as the kernel issues it: D[64,n] = A[64,32 * steps] * B[n,32 * steps]^T from zero,
// or onto what D holds or a pending group leaves there.
struct ProductGroup {
  int n = 0, steps = 0;
  std::string_view types;      // "e4m3.e5m2"
  std::uint32_t a = 0, b = 0;  // low halves of the matrix descriptors
  std::uint32_t high = 0;      // the high half of both
  bool adds = false;           // onto D
};

// Called by every lane of a warp. Each gives its n / 2 accumulators, which are NaN until the wait
// for the last group with these accumulators.
void issue_products(const ProductGroup& group, float* accumulators);
// Waits until at most so many of the warp's groups are pending.
void wait_products(int most_pending);

}  // namespace octile::emulation
