// The search space as data: axes to enumerate and named constraints to prune by. A rejected
// candidate says which constraint removed it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/problem.h"
#include "generator/quantize/config.h"

namespace octile {

struct GemmConstraint {
  std::string_view name;    // "fits_shared_memory"
  std::string_view reason;  // one sentence with the rule's source
  bool (*admits)(const GemmConfig&, const GemmProblem&, const DeviceSpec&);
};
std::span<const GemmConstraint> gemm_constraints();

// nullptr: admitted. Otherwise the first constraint that refuses.
const GemmConstraint* refused_by(const GemmConfig&, const GemmProblem&, const DeviceSpec&);

struct GemmCandidates {
  std::vector<GemmConfig> admitted;
  std::size_t enumerated = 0;
  std::vector<std::pair<std::string_view, std::size_t>> removed;  // per constraint, in table order
};
// Every tile with the raster that suits most products by it, which usual_raster says.
GemmCandidates gemm_candidates(const GemmProblem&, const DeviceSpec&);

Raster usual_raster(const GemmConfig& config, std::int64_t n);
// The other walks over D that a configuration may win by, at m rows. None where D has one row or
// column of tiles: all walks are one. The cost model says nothing of them.
std::vector<Raster> other_rasters(const GemmConfig& config, const GemmProblem& problem,
                                  std::int64_t m);

}  // namespace octile
