// The default configuration of a quantiser, and the estimated cost of others relative to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/quantize/config.h"
#include "generator/quantize/problem.h"

namespace octile {

// Returns the configuration for a row count without a tuning record (defaults.cc).
QuantizeConfig default_config(const QuantizeProblem&, std::int64_t rows, const DeviceSpec&);

// Returns which row of the defaults chose that configuration, why such tiles are fast, and on which
// card that was measured.
std::string default_reason(const QuantizeProblem&, std::int64_t rows, const DeviceSpec&);

// Returns microseconds from loads in flight and starts of thread blocks. Configurations that keep
// memory equally busy tie; the one most like the default then wins, because measurements chose the
// default.
double estimate_us(const QuantizeConfig&, const QuantizeProblem&, std::int64_t rows,
                   const DeviceSpec&);
// Returns the estimates of many configurations, in their order.
std::vector<double> estimates_us(const std::vector<QuantizeConfig>&, const QuantizeProblem&,
                                 std::int64_t rows, const DeviceSpec&);

}  // namespace octile
