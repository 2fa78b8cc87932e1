// The time of a GEMM by WGMMA: a model that is fitted to races on an H200 and an H100.
#pragma once

#include <cstdint>

#include "generator/gemm/cost.h"

namespace octile::gemm_cost {

// Returns the factor of all estimates of a problem, which ranks no configuration.
double problem_factor(const GemmProblem&, std::int64_t tokens, const DeviceSpec&);

// `factor`: the problem's.
GemmCost estimate_wgmma(const GemmConfig&, const GemmProblem&, std::int64_t tokens,
                        const DeviceSpec&, double factor);

}  // namespace octile::gemm_cost
