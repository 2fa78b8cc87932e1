// The time of a GEMM whose warps multiply by themselves (mma.sync): a roofline of the machine's
// description. Nothing in it is fitted to a card.
#pragma once

#include <cstdint>

#include "generator/gemm/cost.h"

namespace octile::gemm_cost {

GemmCost estimate_by_warps(const GemmConfig&, const GemmProblem&, std::int64_t tokens,
                           const DeviceSpec&);

}  // namespace octile::gemm_cost
