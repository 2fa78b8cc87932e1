// The list of families in the runtime, and the functions that the engine calls for a problem or a
// kernel of any family. generator/families.h lists the problems and the configurations, and
// runtime/prove/families.h the functions for searches. Only these files tell families apart; a new
// family adds its header and one type here.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>

#include "generator/families.h"
#include "runtime/families/family.h"
#include "runtime/families/gemm/family.h"
#include "runtime/families/quantize/family.h"
#include "runtime/launch/argument_checks.h"

namespace octile {

using ResolvedKernel = std::variant<ResolvedGemm, ResolvedQuantize>;

// Returns the problem if it is of the family, else null. For calls that belong to one family, such
// as octile_gemm_run.
template <typename P>
const P* problem_as(const Problem& problem) {
  return std::get_if<P>(&problem);
}

// Returns the resolved kernel of a problem that is known to be of the family.
template <typename P>
const ResolvedOf<P>& resolved_as(const ResolvedKernel& resolved) {
  return std::get<ResolvedOf<P>>(resolved);
}

// Calls `f` with the problem of its own type. Callers give one overload for each family.
template <typename F>
decltype(auto) visit_family(const Problem& problem, F&& f) {
  return std::visit(std::forward<F>(f), problem);
}

// Checks what a plan demands of a problem beyond the support matrix: extents of 31 bits.
Status check_plan_extents(const Problem& problem);

// Returns what the kernel's launches need. The configuration is of the problem's family.
ResolvedKernel resolve(const Problem& problem, const KernelConfig& config, const DeviceSpec& device,
                       const LoadedKernel& loaded);

// Returns the workspace of a call, whichever kernel serves it.
std::int64_t workspace_bytes(const Problem& problem, const DeviceSpec& device, std::int64_t tokens);

}  // namespace octile
