// The inner loops of the host quantiser.
#pragma once

#include <cstdint>

#include "generator/core/types.h"

namespace octile::reference {

// out[i] = float(x[offset + i]).
void widen(const void* x, DType dtype, std::int64_t offset, std::int64_t count, float* out);

// Bits of the largest finite magnitude; 0 for none. Magnitudes order as their bits do.
std::uint32_t finite_amax_bits(const float* x, std::int64_t count);

// amax[i] = max(amax[i], finite magnitude of x[i]).
void update_amax_bits(const float* x, std::int64_t count, std::uint32_t* amax);

// How many of x are infinite or NaN.
std::int64_t count_nonfinite(const float* x, std::int64_t count);

// q[i] = the contract's step 3 on x[i] with encode[i].
void cast_scaled(const float* x, const float* encode, DType fp8, std::int64_t count,
                 std::uint8_t* q);

}  // namespace octile::reference
