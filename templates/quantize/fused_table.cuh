// A table of the values that depend on one bf16 input: a part of a fused source with few enough
// values (generator/quantize/lookup.h). The table has one place for each magnitude from
// E::kFirstMagnitude to E::kLastMagnitude. The lowest 12 bits of these magnitudes differ and are
// their places; the negative ones are in the second half.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/elements.cuh"
#endif

namespace quantize {

template <typename E>
struct LookupTable {
  using In = Source<E::kType>;
  // How many of four values are looked up; the others are computed meanwhile. Shared memory has
  // three conflicts a lookup, and issue slots are free.
  static constexpr int kLookedUp = 3;
  static constexpr u32 kHalf = E::kTableHalf;
  static constexpr int kBytes = 2 * kHalf * sizeof(float);

  // Fills the table, by all threads of the block. A barrier must follow.
  template <int kThreads>
  static __device__ __forceinline__ void fill(float* table) {
    constexpr u32 kCount = E::kLastMagnitude - E::kFirstMagnitude + 1;
    static_assert(kCount <= kHalf, "every magnitude has a place");
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kCount; i += kThreads) {
      const u32 magnitude = E::kFirstMagnitude + i, place = magnitude % kHalf;
      table[place] = E::looked_up(In::value(magnitude));
      table[place + kHalf] = E::looked_up(In::value(magnitude | 0x8000u));
    }
  }

  // Looks up the values of two inputs, the lower half of the word first.
  static __device__ __forceinline__ void look_up(const float* table, u32 word, float& first,
                                                 float& second) {
    constexpr u32 kBoth = 0x10001u, kPlace = (kHalf - 1) * kBoth;
    const u32 known =
        arithmetic::min_u16x2(arithmetic::max_u16x2(word & 0x7fff7fffu, E::kFirstMagnitude * kBoth),
                              E::kLastMagnitude * kBoth);
    // The shift puts the sign above the place.
    const u32 places = (word >> 3 & ~kPlace) | (known & kPlace);
    first = table[places & (2 * kHalf - 1)];
    second = table[places >> 16];
  }
};

}  // namespace quantize
