// A quantiser's loads, for candidates and cost.
#pragma once

#include <cstdint>

#include "generator/quantize/config.h"
#include "generator/quantize/problem.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/units.h"

namespace octile {

// Microseconds from a load to its data while memory is busy.
inline constexpr double kLoadedLatencyUs = 1.0;

inline std::int64_t loads_of_a_thread(const QuantizeConfig& c, const QuantizeProblem& p) {
  return resources_of(p, c).vectors_per_thread;
}

}  // namespace octile
