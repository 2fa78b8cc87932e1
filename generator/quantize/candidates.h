// The search space of a quantise kernel as data, as candidates.h has that of a product: axes to
// enumerate, named constraints to prune by, and what a configuration should cost.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/problem.h"
#include "generator/quantize/config.h"

namespace octile {

// A quantise problem at a row count, on a device.
struct QuantizeSetting {
  const QuantizeProblem& problem;
  std::int64_t rows;  // never dynamic
  const DeviceSpec& device;
};

struct QuantizeConstraint {
  std::string_view name;    // "registers_hold_tile"
  std::string_view reason;  // one sentence with the rule's source
  bool (*admits)(const QuantizeConfig&, const QuantizeSetting&);
};
std::span<const QuantizeConstraint> quantize_constraints();

// nullptr: admitted. Otherwise the first constraint that refuses.
const QuantizeConstraint* refused_by(const QuantizeConfig&, const QuantizeSetting&);

struct QuantizeCandidates {
  std::vector<QuantizeConfig> admitted;  // the default first, whatever constraints say of it
  std::size_t enumerated = 0;
  std::vector<std::pair<std::string_view, std::size_t>> removed;  // per constraint, in table order
};
QuantizeCandidates quantize_candidates(const QuantizeSetting&);

// Microseconds by loads in flight and starts of thread blocks. What moves memory as fast as it goes
// is a tie, which falls to the likeness to the default: the default was chosen by measurements.
double estimate_us(const QuantizeConfig&, const QuantizeSetting&);

}  // namespace octile
