// The functions and types that a family of kernels provides. A family is a kind of kernel with its
// own problem. Its folder has one file for each of: problem, support, config, candidates, cost,
// emit. All families use the same function names, so that generator/families.cc dispatches without
// naming one.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/candidates.h"
#include "generator/core/device_spec.h"
#include "generator/core/emitter.h"
#include "generator/core/error.h"
#include "generator/core/recipe.h"
#include "generator/core/support.h"
#include "generator/core/token_axis.h"

namespace octile {

// Properties that cannot be found by overloading on the family's types. Every family's family.h
// specialises it for its problem:
//   Config               how one kernel of the family works a problem
//   kName                "gemm", as tuning records call the family
//   kEstimatesTime       true if estimate_us predicts a time; false if it only orders candidates
//   operations()         the first words of the family's problem texts
//   support_rows()       the family's rows of the support matrix
//   parse_problem(words) a text split into words, the first of which is one of operations()
//   parse_config(text)   the inverse of to_text(config)
template <typename Problem>
struct Family;

template <typename Problem>
using ConfigOf = typename Family<Problem>::Config;

// The functions of a family, which generator/families.h describes. The check is made where no
// dispatching function is declared yet, so that a missing function cannot be mistaken for one.
template <typename P>
concept KernelFamily = requires(
    const P& problem, const ConfigOf<P>& config, const std::vector<ConfigOf<P>>& configs,
    std::int64_t tokens, const DeviceSpec& device, const Recipe& recipe,
    std::span<const std::string_view> words, std::string_view text, TemplateSet templates) {
  { Family<P>::kName } -> std::convertible_to<std::string_view>;
  { Family<P>::kEstimatesTime } -> std::convertible_to<bool>;
  { Family<P>::operations() } -> std::convertible_to<std::span<const std::string_view>>;
  { Family<P>::support_rows() } -> std::same_as<std::span<const SupportRow>>;
  { Family<P>::parse_problem(words) } -> std::same_as<Result<P>>;
  { Family<P>::parse_config(text) } -> std::same_as<Result<ConfigOf<P>>>;
  // problem
  { to_text(problem) } -> std::same_as<std::string>;
  { short_text(problem) } -> std::same_as<std::string>;
  { operation_of(problem) } -> std::same_as<std::string_view>;
  { check_well_formed(problem) } -> std::same_as<Status>;
  { token_axis(problem) } -> std::same_as<TokenAxis>;
  { with_tokens(problem, tokens) } -> std::same_as<P>;
  { extents(problem) } -> std::same_as<std::vector<Extent>>;
  { is_empty(problem) } -> std::same_as<bool>;
  { flops(problem, tokens) } -> std::same_as<double>;
  { has_types_of(problem, recipe) } -> std::same_as<bool>;
  { without_invariance(problem) } -> std::same_as<std::optional<P>>;
  { tuned_alike(problem) } -> std::same_as<std::optional<P>>;
  // support
  { field_values(problem) } -> std::same_as<FieldValues>;
  { check_supported(problem) } -> std::same_as<Status>;
  { check_supported(problem, device) } -> std::same_as<Status>;
  // config
  { to_text(config) } -> std::same_as<std::string>;
  { kernel_name(problem, config) } -> std::same_as<std::string>;
  { numerics_difference(config, config) } -> std::same_as<std::optional<std::string>>;
  // candidates
  { candidates(problem, tokens, device) } -> std::same_as<CandidatesOf<ConfigOf<P>>>;
  { rejection_reason(config, problem, tokens, device) } -> std::same_as<std::optional<std::string>>;
  { variants(config, problem, tokens) } -> std::same_as<std::vector<ConfigOf<P>>>;
  // cost
  { default_config(problem, tokens, device) } -> std::same_as<ConfigOf<P>>;
  { default_reason(problem, tokens, device) } -> std::same_as<std::string>;
  { estimate_us(config, problem, tokens, device) } -> std::same_as<double>;
  { estimates_us(configs, problem, tokens, device) } -> std::same_as<std::vector<double>>;
  // emit
  { emit(problem, config, device, templates) } -> std::same_as<Result<EmittedKernel>>;
  { explain(problem, config, device) } -> std::same_as<std::string>;
};

}  // namespace octile
