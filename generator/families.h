// The list of families, and the functions of the generator for a problem and a configuration of any
// of them. Only this file and families.cc tell families apart; a new family adds its header and
// one type to each of the two variants.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "generator/core/candidates.h"
#include "generator/core/device_spec.h"
#include "generator/core/emitter.h"
#include "generator/core/error.h"
#include "generator/core/family.h"
#include "generator/core/recipe.h"
#include "generator/core/support.h"
#include "generator/core/token_axis.h"
#include "generator/core/token_buckets.h"
#include "generator/gemm/family.h"
#include "generator/quantize/family.h"

namespace octile {

using Problem = std::variant<GemmProblem, QuantizeProblem>;
using KernelConfig = std::variant<GemmConfig, QuantizeConfig>;

// ---- problem

// Returns the canonical text of the problem, which parse_problem reads.
std::string to_text(const Problem& problem);

// Returns what a table calls the problem: "64x7168x2048" for a GEMM, else its whole text.
std::string short_text(const Problem& problem);

// Reads a problem's text, its fields in any order. Errors: kInvalidArgument naming an unknown,
// repeated, missing or malformed field. The result is well formed; check_supported says whether a
// kernel exists.
Result<Problem> parse_problem(std::string_view text);

// Returns the family's name in tuning records: "gemm".
std::string_view family_name(const Problem& problem);

// Returns the first word of the problem's text: "gemm", "quantize", "dequantize", "transpose".
std::string_view operation_of(const Problem& problem);

// Checks the rules of every problem, also of those without a kernel: counts >= 0 (or dynamic where
// allowed), scales on FP8 types only, options that fit together. Errors: kInvalidArgument naming
// the field, its value and what is allowed.
Status check_well_formed(const Problem& problem);

// Returns the dimension that is the token count.
TokenAxis token_axis(const Problem& problem);

// Returns the problem with its token count set to `tokens` (kDynamic: any count).
Problem with_tokens(Problem problem, std::int64_t tokens);
Problem with_dynamic_tokens(Problem problem);

// Returns all dimensions of the problem: n, k, m of a GEMM; cols, rows of a quantiser.
std::vector<Extent> extents(const Problem& problem);

// Returns true if no launch will ever be needed, because the result has no elements.
bool is_empty(const Problem& problem);

// Returns the floating-point operations of one call; 0 for families that only move data.
double flops(const Problem& problem, std::int64_t tokens);

// Returns true if the problem has the types of a tensor role or of a pass of the recipe.
bool has_types_of(const Problem& problem, const Recipe& recipe);

// If every token count must give a row the same bits, returns the problem without that demand, and
// otherwise nothing. A tuning record of the returned problem may serve this one if
// numerics_difference allows it.
std::optional<Problem> without_invariance(const Problem& problem);

// Returns the problem that moves and multiplies as much and differs in fields that hardly change
// which configuration is fastest, in its most common form, or nothing if it is `problem`. Records
// of the returned problem serve this one as near records.
std::optional<Problem> tuned_alike(const Problem& problem);

// ---- support

using SupportMatrix = std::vector<std::reference_wrapper<const SupportRow>>;

// Returns the rows of all families. The first row that matches a problem decides; the last row of
// each operation refuses everything else.
SupportMatrix support_matrix();
const SupportRow& support_of(const Problem& problem);
bool matches(const SupportRow& row, const Problem& problem);

// Checks that the problem can be carried out: well formed, within the dimension rules and supported
// by the matrix. Errors: kInvalidArgument naming the field, its value and what is allowed;
// kUnsupported with the row's reason.
Status check_supported(const Problem& problem);

// Checks the same, and that kernels of the problem exist for the device. Errors: as above, and
// kUnsupported with the device, the row's reason and the known devices on which it is supported.
Status check_supported(const Problem& problem, const DeviceSpec& device);

// Checks that a family has kernels for the device. Errors: kUnsupported, as check_supported.
Status check_device(const DeviceSpec& device);

// Returns the names of the known devices for which a family has kernels.
std::vector<std::string> supported_devices();
// Returns them as a sentence lists them: "h200, h100, h20, l4".
std::string supported_device_names();

// An operation of which a device has no kernel, and the support matrix's reason.
struct RefusedOperation {
  std::string_view operation, reason;
};
std::vector<RefusedOperation> refused_operations(const DeviceSpec& device);
// Returns which operations have kernels on which GPUs, as a table for docs/support.md and `octile
// doctor --matrix`.
std::string machines_markdown();

// Returns the matrix as a table for docs/support.md and `octile doctor --matrix`.
std::string support_matrix_markdown();

// ---- configuration

// The problem and the configurations of one call belong to one family. If they do not, emit reports
// it, explain leaves the configuration out, and the other functions throw std::bad_variant_access.

// Returns the configuration of a problem that is known to be of the family.
template <typename P>
const ConfigOf<P>& config_as(const KernelConfig& config) {
  return std::get<ConfigOf<P>>(config);
}

// Returns the canonical text of the configuration.
std::string to_text(const KernelConfig& config);

// Reads a configuration of the problem's family; a field left out keeps its default.
// Errors: kInvalidArgument naming the field that is not one of the family's.
Result<KernelConfig> parse_config(const Problem& problem, std::string_view text);

// Returns the name of the kernel that the pair emits.
std::string kernel_name(const Problem& problem, const KernelConfig& config);

// If the configurations sum in a different order or precision, returns a sentence saying how;
// otherwise nothing.
std::optional<std::string> numerics_difference(const KernelConfig& config,
                                               const KernelConfig& other);

// ---- candidates and cost

using Candidates = CandidatesOf<KernelConfig>;

// Returns the search space of the problem at a token count: what is admitted, and how many
// configurations each constraint of the family's table removed (in the table's order).
Candidates candidates(const Problem& problem, std::int64_t tokens, const DeviceSpec& device);

// Returns why no kernel may use the configuration for the problem, or nothing if one may.
std::optional<std::string> rejection_reason(const KernelConfig& config, const Problem& problem,
                                            std::int64_t tokens, const DeviceSpec& device);

// Returns configurations that differ only in fields that the cost model does not see (the raster of
// a GEMM). They are worth timing for the fastest candidates alone.
std::vector<KernelConfig> variants(const KernelConfig& config, const Problem& problem,
                                   std::int64_t tokens);

// Returns the configuration for a token count without a tuning record.
KernelConfig default_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device);

// Returns what chose that configuration: "the cost model", or a row of a family's defaults with its
// reason.
std::string default_reason(const Problem& problem, std::int64_t tokens, const DeviceSpec& device);

// Returns the predicted microseconds of one launch.
double estimate_us(const KernelConfig& config, const Problem& problem, std::int64_t tokens,
                   const DeviceSpec& device);

// Returns those of many configurations, in their order.
std::vector<double> estimates_us(const std::vector<KernelConfig>& configs, const Problem& problem,
                                 std::int64_t tokens, const DeviceSpec& device);

// Returns true if estimates may be compared as times; false if they only order candidates.
bool estimates_time(const Problem& problem);

// ---- emission

// Returns the kernel's self-contained CUDA source. Errors: as check_supported; kInvalidArgument for
// a configuration that is refused; kInternal for a configuration of another family.
Result<EmittedKernel> emit(const Problem& problem, const KernelConfig& config,
                           const DeviceSpec& device, TemplateSet templates);

// Returns what shape and recipe changed in the source, one "name = value  (why)" a line.
std::string explain(const Problem& problem, const KernelConfig& config, const DeviceSpec& device);

}  // namespace octile
