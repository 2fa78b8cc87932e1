// The named constraints between the axes of a GEMM's configuration (axes.h).
#pragma once

#include <span>

#include "generator/gemm/candidates.h"

namespace octile {

// The loops of the enumeration that set a tile and its consumers.
inline constexpr std::size_t kTileLoops = 3;

// The constraints in the order in which they are checked, by the facts that they need.
struct GemmRules {
  std::span<const GemmConstraint> of_tiles;    // the tile and its consumers alone
  std::span<const GemmConstraint> of_configs;  // all but the ring's depth
  std::span<const GemmConstraint> of_rings;    // that as well, which takes longest to find
};
GemmRules gemm_rules();

// The stages of the deepest ring that is of use.
inline constexpr int kMostStages = 16;

// Returns the shared memory that one CTA may use if `ctas_per_sm` are to fit an SM.
int smem_limit(const GemmConfig&, const DeviceSpec&);

}  // namespace octile
