// The entry points' names, which profilers show: they describe a kernel's problem and
// configuration.
#pragma once

#include <string>

#include "generator/quantize/config.h"
#include "generator/quantize/problem.h"

namespace octile {

// Returns a name such as octile_quantize_bf16_e4m3_1x128_f32_row_t8x256_w8_occ4.
std::string kernel_name(const QuantizeProblem&, const QuantizeConfig&);
std::string companion_name(const QuantizeProblem&, Companion);

}  // namespace octile
