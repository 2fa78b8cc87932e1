// Scales on the host: from the largest magnitude of a block to the number that is stored.
#pragma once

#include <cstdint>

#include "generator/problem.h"

namespace octile::reference {

// The encode scale of a block whose finite amax is `amax` (steps 1 and 2), and its decode scale
// (step 4).
float encode_scale(float amax, const QuantizeProblem& problem);
float decode_scale(float encode);

// Writes the decode scale of `encode`: fp32; rounded to nearest even (bf16); its biased exponent
// (e8m0, packed, where `index` counts bytes).
void store_scale(void* scales, ScaleFormat format, std::int64_t index, float encode);
float load_scale(const void* scales, ScaleFormat format, std::int64_t index);

}  // namespace octile::reference
