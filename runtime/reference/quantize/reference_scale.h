// Computes scales on the host, from the largest magnitude of a block to the stored number.
#pragma once

#include <cstdint>

#include "generator/core/layout.h"
#include "generator/quantize/problem.h"

namespace octile::reference {

// Return the encode scale of a block whose finite amax is `amax` (steps 1 and 2 of
// docs/numerics.md), and its decode scale (step 4).
float encode_scale(float amax, const QuantizeProblem& problem);
float decode_scale(float encode);

// Writes the decode scale of `encode` as fp32, as bf16 rounded to nearest even, or as its biased
// exponent (e8m0, ue8m0x4). For ue8m0x4, `index` counts bytes.
void store_scale(void* scales, ScaleFormat format, std::int64_t index, float encode);
// Returns the stored scale as a number; E8M0's 255 is NaN.
float load_scale(const void* scales, ScaleFormat format, std::int64_t index);

// Sets every scale of the layout, including padding, to 1; scales that are not overwritten later
// are padding. The layout's rows lie scale_ld apart and end at that stride if it is smaller.
void fill_scales_with_ones(const QuantizedLayout& layout, const TensorType& type,
                           std::int64_t scale_ld, void* scales);

}  // namespace octile::reference
