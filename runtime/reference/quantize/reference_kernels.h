// The inner loops of the host quantiser.
#pragma once

#include <cstdint>

#include "generator/core/types.h"

namespace octile::reference {

// Sets out[i] = float(x[offset + i]).
void widen(const void* x, DType dtype, std::int64_t offset, std::int64_t count, float* out);

// Rounds every value to bf16, to nearest even.
void round_to_bf16(float* x, std::int64_t count);

// Returns the bits of the largest finite magnitude, or 0 if there is none. Magnitudes have the same
// order as their bits.
std::uint32_t finite_amax_bits(const float* x, std::int64_t count);

// Sets amax[i] = max(amax[i], finite magnitude of x[i]).
void update_amax_bits(const float* x, std::int64_t count, std::uint32_t* amax);

// Returns the largest of them, 0 of none.
std::uint32_t largest_of(const std::uint32_t* x, std::int64_t count);

// Returns how many values of x are infinite or NaN.
std::int64_t count_nonfinite(const float* x, std::int64_t count);

// Sets q[i] to x[i] quantised with encode[i] by step 3 of docs/numerics.md.
void cast_scaled(const float* x, const float* encode, DType fp8, std::int64_t count,
                 std::uint8_t* q);

}  // namespace octile::reference
