// The list of families in the runtime, and what the engine and the tuner ask of a problem or a
// kernel of any of them. generator/families.h lists the problems and the configurations. Only this
// file and families.cc tell families apart; a new family adds its header, one type and one bench.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "generator/families.h"
#include "runtime/engine/argument_checks.h"
#include "runtime/families/family.h"
#include "runtime/families/gemm/family.h"
#include "runtime/families/quantize/family.h"

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

// Checks that operands can be made for the problem, which a search needs. Errors: kUnsupported.
Status check_operands(const Problem& problem);

// Returns the bytes that a call cannot avoid moving between memory and the GPU.
std::int64_t bytes_moved(const Problem& problem, std::int64_t tokens);

namespace tuner {

struct TunerContext;
struct Ranked;
class GpuBench;

// Returns a bench of the candidates on fresh random operands. Errors: as the family's make_slots.
Result<std::unique_ptr<GpuBench>> make_bench(TunerContext& context, const Problem& problem,
                                             std::int64_t tokens, std::vector<Ranked> candidates,
                                             std::uint64_t seed);

}  // namespace tuner
}  // namespace octile
