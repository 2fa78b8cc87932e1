// Common parts of octile_plan_prepare, octile_layer_prepare and their calls with options.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <span>

#include "octile/octile.h"
#include "runtime/engine/plan.h"

namespace octile::api {

// The longest budget: a month.
inline constexpr double kMostSearchSeconds = 2'678'400;

struct PrepareRequest {
  bool async = false;
  bool tune = false;              // the caller asks for searches
  std::optional<double> seconds;  // that they may take; nothing: what they need
  CUstream stream = nullptr;
};

Result<PrepareRequest> read_prepare_flags(std::uint32_t flags);
Result<PrepareRequest> read_prepare_options(const octile_prepare_options* user);

// Says kCapturing if the stream or a default stream of the device captures.
Status check_may_search(const Target& target, CUstream stream);

// Prepares the ranges, which are of plans of one library and device. `async` is for one range.
Status prepare(Library& library, std::span<const Plan::Range> ranges,
               const PrepareRequest& request);

}  // namespace octile::api
