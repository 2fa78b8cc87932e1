// FP8 casts on the host, bit for bit as docs/numerics.md "Quantising" step 3 and the device's
// cvt.rn.satfinite. They are the oracle of every quantise kernel.
#pragma once

#include <cstdint>

#include "generator/core/types.h"

namespace octile::reference {

// Convert between fp32 and FP8. A NaN becomes the NaN code. An infinity becomes a NaN in E4M3 and
// an infinity of the same sign in E5M2. A finite value is rounded to nearest even on the FP8 grid
// and saturates at the largest finite value. Subnormals and -0 are kept.
std::uint8_t to_fp8(float value, DType fp8);
float from_fp8(std::uint8_t code, DType fp8);

// Returns the code that this library and the device's cast write for a NaN of either sign.
std::uint8_t nan_code(DType fp8);

// Returns the encode scale of a block whose finite amax is `amax` (docs/numerics.md "Quantising",
// step 2; not E8M0): 1 if it is 0, and a value of `source`, the type of x, if it would be infinite.
float encode_of_amax(float amax, DType fp8, DType source, bool power_of_two);

float bf16_to_float(std::uint16_t bits);
float fp16_to_float(std::uint16_t bits);
std::uint16_t float_to_bf16(float value);  // nearest even; NaN stays NaN (0x7fff)
std::uint16_t float_to_fp16(float value);  // nearest even; overflows to infinity

// Returns element `index` of an array of `dtype` as fp32.
float load_as_float(const void* array, DType dtype, std::int64_t index);

}  // namespace octile::reference
