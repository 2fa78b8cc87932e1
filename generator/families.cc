#include "generator/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "generator/core/text_fields.h"

namespace octile {
namespace {

// Calls `visit` with each family in the order of the list.
template <typename... P, typename Visit>
void for_each_family(std::type_identity<std::variant<P...>>, const Visit& visit) {
  (visit(Family<P>{}), ...);
}
template <typename Visit>
void for_each_family(const Visit& visit) {
  for_each_family(std::type_identity<Problem>{}, visit);
}

// Returns the operations of all families: "gemm, quantize, dequantize, transpose".
std::string all_operations() {
  std::string names;
  for_each_family([&](auto family) {
    for (const std::string_view name : family.operations()) {
      names.append(names.empty() ? "" : ", ").append(name);
    }
  });
  return names;
}

Error mismatch(const Problem& problem) {
  return {ErrorCode::kInternal,
          fmt::format("problem '{}' was given a configuration of another kernel family",
                      to_text(problem))};
}

}  // namespace

// ---- problem

std::string to_text(const Problem& problem) {
  return std::visit([](const auto& p) { return to_text(p); }, problem);
}

std::string short_text(const Problem& problem) {
  return std::visit([](const auto& p) { return short_text(p); }, problem);
}

Result<Problem> parse_problem(std::string_view text) {
  const std::vector<std::string_view> words = split_words(text);
  const std::string_view operation = words.empty() ? std::string_view() : words.front();
  Result<Problem> parsed =
      fail(ErrorCode::kInvalidArgument,
           fmt::format("a problem begins with '{}'; allowed are {}", operation, all_operations()));
  for_each_family([&](auto family) {
    const auto operations = family.operations();
    if (std::ranges::find(operations, operation) == operations.end()) return;
    parsed = family.parse_problem(words);
  });
  return parsed;
}

std::string_view family_name(const Problem& problem) {
  return std::visit([]<typename P>(const P&) { return Family<P>::kName; }, problem);
}

std::string_view operation_of(const Problem& problem) {
  return std::visit([](const auto& p) { return operation_of(p); }, problem);
}

Status check_well_formed(const Problem& problem) {
  return std::visit([](const auto& p) { return check_well_formed(p); }, problem);
}

TokenAxis token_axis(const Problem& problem) {
  return std::visit([](const auto& p) { return token_axis(p); }, problem);
}

Problem with_tokens(Problem problem, std::int64_t tokens) {
  return std::visit([&](auto& p) -> Problem { return with_tokens(std::move(p), tokens); }, problem);
}

Problem with_dynamic_tokens(Problem problem) { return with_tokens(std::move(problem), kDynamic); }

std::vector<Extent> extents(const Problem& problem) {
  return std::visit([](const auto& p) { return extents(p); }, problem);
}

bool is_empty(const Problem& problem) {
  return std::visit([](const auto& p) { return is_empty(p); }, problem);
}

double flops(const Problem& problem, std::int64_t tokens) {
  return std::visit([&](const auto& p) { return flops(p, tokens); }, problem);
}

bool has_types_of(const Problem& problem, const Recipe& recipe) {
  return std::visit([&](const auto& p) { return has_types_of(p, recipe); }, problem);
}

std::optional<Problem> without_invariance(const Problem& problem) {
  return std::visit([](const auto& p) -> std::optional<Problem> { return without_invariance(p); },
                    problem);
}

std::optional<Problem> tuned_alike(const Problem& problem) {
  return std::visit([](const auto& p) -> std::optional<Problem> { return tuned_alike(p); },
                    problem);
}

// ---- support

SupportMatrix support_matrix() {
  SupportMatrix matrix;
  for_each_family([&](auto family) {
    for (const SupportRow& row : family.support_rows()) matrix.emplace_back(row);
  });
  return matrix;
}

const SupportRow& support_of(const Problem& problem) {
  return std::visit(
      []<typename P>(const P& p) -> const SupportRow& {
        return first_match(Family<P>::support_rows(), operation_of(p), field_values(p));
      },
      problem);
}

bool matches(const SupportRow& row, const Problem& problem) {
  return std::visit([&](const auto& p) { return matches(row, operation_of(p), field_values(p)); },
                    problem);
}

Status check_supported(const Problem& problem) {
  return std::visit([](const auto& p) { return check_supported(p); }, problem);
}

Status check_supported(const Problem& problem, const DeviceSpec& device) {
  return std::visit([&](const auto& p) { return check_supported(p, device); }, problem);
}

Status check_device(const DeviceSpec& device) {
  Status first;
  bool is_supported = false;
  for_each_family([&]<typename P>(Family<P> family) {
    const P usual;
    const Status status = check_device_rows(family.support_rows(), operation_of(usual),
                                            field_values(usual), family.kName, device);
    is_supported = is_supported || status;
    if (!status && first) first = status;
  });
  return is_supported ? Status() : first;
}

std::vector<std::string> supported_devices() {
  std::vector<std::string> names;
  for (const DeviceSpec& device : known_devices()) {
    if (check_device(device)) names.push_back(device.name);
  }
  return names;
}

std::string supported_device_names() {
  return fmt::format("{}", fmt::join(supported_devices(), ", "));
}

std::vector<RefusedOperation> refused_operations(const DeviceSpec& device) {
  std::vector<RefusedOperation> refused;
  for_each_family([&](auto family) {
    for (const std::string_view operation : family.operations()) {
      const auto rows = family.support_rows();
      const auto row = std::ranges::find_if(rows, [&](const SupportRow& r) {
        return !r.pattern.empty() && matches(r, operation, device_values(device));
      });
      if (row != rows.end() && !row->supported) refused.push_back({operation, row->reason});
    }
  });
  return refused;
}

std::string machines_markdown() {
  std::string text = "| GPUs | compiled for | operation | kernels |\n|---|---|---|---|\n";
  for (const DeviceSpec& device : known_devices()) {
    if (text.find("| " + device.arch() + " |") != std::string::npos) continue;
    std::vector<std::string> names;
    for (const DeviceSpec& other : known_devices()) {
      if (other.arch() == device.arch()) names.push_back(other.name);
    }
    const std::vector<RefusedOperation> refused = refused_operations(device);
    for_each_family([&](auto family) {
      for (const std::string_view operation : family.operations()) {
        const auto it = std::ranges::find(refused, operation, &RefusedOperation::operation);
        text +=
            fmt::format("| {} | {} | {} | {} |\n", fmt::join(names, ", "), device.arch(), operation,
                        it == refused.end() ? "yes" : fmt::format("no: {}", it->reason));
      }
    });
  }
  return text;
}

std::string support_matrix_markdown() {
  std::string text(kSupportMarkdownHead);
  for (const SupportRow& row : support_matrix()) text += to_markdown(row);
  return text;
}

// ---- configuration

std::string to_text(const KernelConfig& config) {
  return std::visit([](const auto& c) { return to_text(c); }, config);
}

Result<KernelConfig> parse_config(const Problem& problem, std::string_view text) {
  return std::visit(
      [&]<typename P>(const P&) -> Result<KernelConfig> { return Family<P>::parse_config(text); },
      problem);
}

std::string kernel_name(const Problem& problem, const KernelConfig& config) {
  return std::visit([&]<typename P>(const P& p) { return kernel_name(p, config_as<P>(config)); },
                    problem);
}

std::optional<std::string> numerics_difference(const KernelConfig& config,
                                               const KernelConfig& other) {
  return std::visit(
      [&]<typename C>(const C& c) { return numerics_difference(c, std::get<C>(other)); }, config);
}

// ---- candidates and cost

Candidates candidates(const Problem& problem, std::int64_t tokens, const DeviceSpec& device) {
  return std::visit(
      [&](const auto& p) -> Candidates {
        auto own = candidates(p, tokens, device);
        return {{own.admitted.begin(), own.admitted.end()}, own.enumerated, std::move(own.removed)};
      },
      problem);
}

std::optional<std::string> rejection_reason(const KernelConfig& config, const Problem& problem,
                                            std::int64_t tokens, const DeviceSpec& device) {
  return std::visit(
      [&]<typename P>(const P& p) {
        return rejection_reason(config_as<P>(config), p, tokens, device);
      },
      problem);
}

std::vector<KernelConfig> variants(const KernelConfig& config, const Problem& problem,
                                   std::int64_t tokens) {
  return std::visit(
      [&]<typename P>(const P& p) -> std::vector<KernelConfig> {
        const auto own = variants(config_as<P>(config), p, tokens);
        return {own.begin(), own.end()};
      },
      problem);
}

KernelConfig default_config(const Problem& problem, std::int64_t tokens, const DeviceSpec& device) {
  return std::visit(
      [&](const auto& p) -> KernelConfig { return default_config(p, tokens, device); }, problem);
}

std::string default_reason(const Problem& problem, std::int64_t tokens, const DeviceSpec& device) {
  return std::visit([&](const auto& p) { return default_reason(p, tokens, device); }, problem);
}

double estimate_us(const KernelConfig& config, const Problem& problem, std::int64_t tokens,
                   const DeviceSpec& device) {
  return std::visit(
      [&]<typename P>(const P& p) { return estimate_us(config_as<P>(config), p, tokens, device); },
      problem);
}

std::vector<double> estimates_us(const std::vector<KernelConfig>& configs, const Problem& problem,
                                 std::int64_t tokens, const DeviceSpec& device) {
  return std::visit(
      [&]<typename P>(const P& p) {
        std::vector<ConfigOf<P>> own;
        own.reserve(configs.size());
        for (const KernelConfig& config : configs) own.push_back(config_as<P>(config));
        return estimates_us(own, p, tokens, device);
      },
      problem);
}

bool estimates_time(const Problem& problem) {
  return std::visit([]<typename P>(const P&) { return Family<P>::kEstimatesTime; }, problem);
}

// ---- emission

Result<EmittedKernel> emit(const Problem& problem, const KernelConfig& config,
                           const DeviceSpec& device, TemplateSet templates) {
  // A configuration may name a unit by which none is chosen.
  if (const Status supported = check_supported(problem, device.with_all_units()); !supported) {
    return tl::unexpected<Error>(supported.error());
  }
  return std::visit(
      [&]<typename P>(const P& p) -> Result<EmittedKernel> {
        const auto* own = std::get_if<ConfigOf<P>>(&config);
        if (own == nullptr) return tl::unexpected<Error>(mismatch(problem));
        return emit(p, *own, device, templates);
      },
      problem);
}

std::string explain(const Problem& problem, const KernelConfig& config, const DeviceSpec& device) {
  const std::string own = std::visit(
      [&]<typename P>(const P& p) {
        const auto* c = std::get_if<ConfigOf<P>>(&config);
        return c == nullptr ? std::string() : explain(p, *c, device);
      },
      problem);
  return fmt::format(
      "problem = {}\ndevice = {}{}\n{}"
      "Extents and leading dimensions stay run-time arguments: one kernel serves all shapes of its "
      "recipe.\n",
      to_text(problem), device.name,
      device.is_measured ? ""
                         : "  (no such card was timed: its speeds and the cost model are assumed)",
      own);
}

}  // namespace octile
