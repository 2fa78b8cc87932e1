// A plan as JSON, for octile_plan_describe and the tools.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/engine/plan.h"

namespace octile {

// One kernel: name, config, template, source_digest, architecture, threads, cluster, registers,
// smem_bytes, spill_store_bytes, spill_load_bytes, stack_bytes, compile_ms (of the compile that
// made the cubin), cubin_bytes, cache ("hit" | "miss"), toolchain.
nlohmann::ordered_json describe(const KernelBuild& build);

// problem, device, kernels: each as above plus `buckets`, the largest token count of every bucket
// it serves, ascending, and `chosen_by`, for each of these "record" | "near record" | "model", or
// null where the kernel serves until the chosen one is ready.
nlohmann::ordered_json describe(const Plan& plan);

}  // namespace octile
