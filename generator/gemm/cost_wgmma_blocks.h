// The cycles of a K-block by WGMMA.
#pragma once

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile::gemm_cost {

// Returns the cycles of one K-block of one CTA if `sharing` CTAs share the SM.
double wgmma_block_cycles(const GemmConfig&, const GemmProblem&, double sharing, const DeviceSpec&);

}  // namespace octile::gemm_cost
