// The kernels that plans of some problems would prepare, each of them once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache/key.h"
#include "runtime/engine/engine.h"
#include "tools/models/workload.h"

namespace octile::tools {

// A problem that a kernel serves.
struct KernelUse {
  Problem problem;
  std::vector<std::int64_t> buckets;  // the largest token count of each, ascending
  std::vector<ChosenBy> chosen_by;    // for each bucket
};

struct NeededKernel {
  KernelConfig config;
  cache::Identity identity;
  std::vector<KernelUse> uses;  // at least one
  bool is_tested = false;       // by a known-answer test, whose problem is a use without buckets
};

// The kernels, by the digests of their cache keys.
using NeededKernels = std::map<std::string, NeededKernel>;

// Returns the kernels for all token counts of the work, as the tuning records and the cost model
// choose them. A device with unused units (DeviceSpec::unused_units) needs those of both outcomes
// of their tests. A device that is tested before it is trusted also needs the kernels of its
// known-answer tests. Errors: those of check_supported, check_tokens and emit.
Result<NeededKernels> needed_kernels(const std::vector<Work>& works, const DeviceSpec& device,
                                     Engine& engine);

// Returns the kernels that the cost model alone would choose for the uses of `kernel`.
Result<NeededKernels> model_kernels(const NeededKernel& kernel, const DeviceSpec& device);

}  // namespace octile::tools
