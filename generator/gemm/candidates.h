// The search space of the GEMM: the axes of its configurations and the constraints between them.
// gemm_axes() of axes.cc has the values of each axis; constraints.cc has the constraints;
// default_config() of cost.h picks one configuration. Numbers of K splits are kSplits of axes.cc,
// and splits_are_allowed() of constraints.cc refuses some.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generator/core/candidates.h"
#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile {

using GemmSetting = Setting<GemmProblem>;
using GemmConstraint = Constraint<GemmProblem, GemmConfig>;
using GemmCandidates = CandidatesOf<GemmConfig>;

std::span<const GemmConstraint> gemm_constraints();

// Returns the first constraint that refuses the configuration, or nullptr if all admit it. With
// `tokens` dynamic, a split may be refused only for reasons that hold at every token count.
const GemmConstraint* refused_by(const GemmConfig&, const GemmProblem&, std::int64_t tokens,
                                 const DeviceSpec&);
std::optional<std::string> rejection_reason(const GemmConfig&, const GemmProblem&,
                                            std::int64_t tokens, const DeviceSpec&);

// Returns the matrix units whose configurations are enumerated: all of the device's that have
// kernels, but only WGMMA if it has that, of which mma.sync is there emulated. A stated
// configuration may have any of the device's.
std::vector<MatrixUnit> units_to_enumerate(const DeviceSpec& device);

// Returns every admitted tile with the raster that suits most problems (usual_raster).
GemmCandidates candidates(const GemmProblem&, std::int64_t tokens, const DeviceSpec&);

Raster usual_raster(const GemmConfig& config, std::int64_t n);
// Returns the other walks over D by which the configuration may win; none if D has one row or one
// column of tiles, because all walks are then the same.
std::vector<Raster> other_rasters(const GemmConfig& config, const GemmProblem& problem,
                                  std::int64_t tokens);
// Returns the configuration with each of its other rasters. The cost model does not see rasters.
std::vector<GemmConfig> variants(const GemmConfig& config, const GemmProblem& problem,
                                 std::int64_t tokens);

}  // namespace octile
