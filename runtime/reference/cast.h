// FP8 casts on the host, bit for bit as CONTRACTS "Quantising" step 3 and the device's
// cvt.rn.satfinite: the oracle of every quantise kernel.
#pragma once

#include <cstdint>

#include "generator/core/types.h"

namespace octile::reference {

// NaN -> NaN code; infinity -> NaN in E4M3, infinity of its sign in E5M2; finite -> nearest even on
// the FP8 grid, saturating to the largest finite. Subnormals and -0 are kept.
std::uint8_t to_fp8(float value, DType fp8);
float from_fp8(std::uint8_t code, DType fp8);

// The code this library writes for a NaN of either sign (what the device's cast writes).
std::uint8_t nan_code(DType fp8);

float bf16_to_float(std::uint16_t bits);
float fp16_to_float(std::uint16_t bits);
std::uint16_t float_to_bf16(float value);  // nearest even; NaN stays NaN (0x7fff)
std::uint16_t float_to_fp16(float value);  // nearest even; overflow to infinity

// Element `index` of an array of `dtype` as fp32.
float load_as_float(const void* array, DType dtype, std::int64_t index);

}  // namespace octile::reference
