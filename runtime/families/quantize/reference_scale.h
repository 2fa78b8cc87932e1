// Scales on the host: from the largest magnitude of a block to the number that is stored.
#pragma once

#include <cstdint>

#include "generator/core/layout.h"
#include "generator/problem.h"

namespace octile::reference {

// The encode scale of a block whose finite amax is `amax` (steps 1 and 2), and its decode scale
// (step 4).
float encode_scale(float amax, const QuantizeProblem& problem);
float decode_scale(float encode);

// Writes the decode scale of `encode`: fp32; rounded to nearest even (bf16); its biased exponent
// (e8m0, packed, where `index` counts bytes).
void store_scale(void* scales, ScaleFormat format, std::int64_t index, float encode);
// The number back again; E8M0's 255 is NaN.
float load_scale(const void* scales, ScaleFormat format, std::int64_t index);

// Every scale of the layout, padding included, becomes 1: what is not overwritten is padding, and
// ends where the layout's does or at the caller's tighter stride (0: as the layout says).
void fill_scales_with_ones(const QuantizedLayout& layout, const TensorType& type,
                           std::int64_t scale_ld, void* scales);

}  // namespace octile::reference
