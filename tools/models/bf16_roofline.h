// What GEMMs take in BF16, without a GPU: a start, and whichever of memory and tensor cores takes
// longer, tiles counted in whole rounds of the SMs. tools/models/bf16_fit.py fits it to the times
// of cuBLASLt and PyTorch on both cards that docs/ holds.
#pragma once

#include <cstdint>

#include "generator/core/device_spec.h"
#include "generator/gemm/problem.h"

namespace octile::tools {

// Two deviations of that fit, of 50 GEMMs.
inline constexpr double kBf16Error = 0.15;

// Returns how many of the contiguous groups have rows if as many as possible do.
std::int64_t filled_groups(const GemmProblem& problem, std::int64_t tokens);

// Returns microseconds of the problem's GEMMs with operands in BF16. Groups and batches are one
// launch, as grouped GEMMs of frameworks are.
double bf16_us(const GemmProblem& problem, std::int64_t tokens, const DeviceSpec& device);

}  // namespace octile::tools
