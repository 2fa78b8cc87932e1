// A small set of GEMM configurations that the GPU suite runs and CI compiles. Every pair of values
// of two axes that the constraints admit together occurs at least once.
#pragma once

#include <vector>

#include "generator/core/device_spec.h"
#include "generator/families.h"
#include "generator/gemm/config.h"

namespace octile::tests {

// Returns a problem that admits every axis: its K is long enough for any split.
GemmProblem splittable_gemm_problem();
std::vector<GemmConfig> covering_gemm_configs(const GemmProblem& problem, const DeviceSpec& device);

}  // namespace octile::tests
