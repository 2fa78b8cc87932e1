// A plan as JSON, for octile_plan_describe and the tools.
#pragma once

#include <string>

#include "cache/json.h"
#include "runtime/engine/plan.h"

namespace octile {

// Describes one kernel: name, config, template, source_digest, architecture, threads, cluster,
// registers, smem_bytes, spill_store_bytes, spill_load_bytes, stack_bytes, compile_ms (of the
// compile that made the cubin), cubin_bytes, cache ("hit" | "miss"), toolchain.
Json describe(const KernelBuild& build);

// Describes a plan as the text of an object: problem, token_axis (the dimension that holds the
// tokens: "m", "k", "rows"), device, kernels. Each kernel has the fields that describe() of a
// KernelBuild gives, and `buckets` and `chosen_by`. `buckets` has the largest token count of every
// bucket it serves, ascending. `chosen_by` has for each of these what name_of(ChosenBy)
// returns, or null if the kernel serves only until the chosen one is ready.
std::string describe(const Plan& plan);

}  // namespace octile
