// The search space of a quantiser: the axes of its configurations and the constraints between them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generator/core/candidates.h"
#include "generator/core/device_spec.h"
#include "generator/quantize/config.h"
#include "generator/quantize/problem.h"

namespace octile {

using QuantizeSetting = Setting<QuantizeProblem>;  // `tokens` is a row count and never dynamic
using QuantizeConstraint = Constraint<QuantizeProblem, QuantizeConfig>;
using QuantizeCandidates = CandidatesOf<QuantizeConfig>;

std::span<const QuantizeConstraint> quantize_constraints();

// Returns the first constraint that refuses the configuration, or nullptr if all admit it.
const QuantizeConstraint* refused_by(const QuantizeConfig&, const QuantizeProblem&,
                                     std::int64_t tokens, const DeviceSpec&);
// Returns what check_config says. A configuration that a constraint prunes is slow, not wrong.
std::optional<std::string> rejection_reason(const QuantizeConfig&, const QuantizeProblem&,
                                            std::int64_t tokens, const DeviceSpec&);

// Returns the default first, which no constraint removes, then every admitted configuration.
QuantizeCandidates candidates(const QuantizeProblem&, std::int64_t tokens, const DeviceSpec&);

// Returns none: the cost model sees every axis.
inline std::vector<QuantizeConfig> variants(const QuantizeConfig&, const QuantizeProblem&,
                                            std::int64_t /*tokens*/) {
  return {};
}
// Returns nothing: every configuration computes the same bits.
inline std::optional<std::string> numerics_difference(const QuantizeConfig&,
                                                      const QuantizeConfig&) {
  return std::nullopt;
}

}  // namespace octile
