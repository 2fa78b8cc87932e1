// The time of a GEMM by mma.sync or tcgen05: a roofline of the machine's description. Nothing in it
// is fitted to a card.
#pragma once

#include <cstdint>

#include "generator/gemm/cost.h"

namespace octile::gemm_cost {

GemmCost estimate_roofline(const GemmConfig&, const GemmProblem&, std::int64_t tokens,
                           const DeviceSpec&);

}  // namespace octile::gemm_cost
