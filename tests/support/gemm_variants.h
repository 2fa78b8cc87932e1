// A small set of GEMM configurations in which every pair of values of two axes that the constraints
// admit together occurs at least once: what the GPU suite runs and CI compiles.
#pragma once

#include <vector>

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/problem.h"

namespace octile::tests {

// A problem that admits every axis: K is long enough for any split.
GemmProblem splittable_gemm_problem();
std::vector<GemmConfig> covering_gemm_configs(const GemmProblem& problem, const DeviceSpec& device);

}  // namespace octile::tests
