// octile explain: what a problem's text says, field by field, and whether there is a kernel for it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "generator/core/nearest.h"
#include "generator/core/text_fields.h"
#include "generator/families.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/explain/choices.h"
#include "tools/explain/fields.h"

namespace octile::tools {
namespace {

struct Options {
  std::vector<std::string> words;
  std::string recipe = "blockwise";
  Option recipe_option;
  bool markdown = false;
  bool json = false;
  ModelOptions model;
  std::vector<std::int64_t> tokens;
  std::string device;  // empty: a GPU if there is one, else kDefaultNamedDevice
};

constexpr const char* kDefaultNamedDevice = "h200";

constexpr std::size_t kFieldColumns = 22;

// Prints a name and a text beside it, in lines that fit.
void print_row(std::string_view name, const std::string& text) {
  const std::size_t width = line_width();
  std::string line = fmt::format("  {}", name);
  if (columns_of(line) + 2 > kFieldColumns) {
    line.append("\n").append(kFieldColumns, ' ');
  } else {
    line.append(kFieldColumns - columns_of(line), ' ');
  }
  print_stdout("{}\n", line + wrapped(text, width, kFieldColumns, kFieldColumns));
}

std::string about_field(const FieldMeaning& field) {
  return fmt::format(
      "{}; takes {}; {}{}", field.meaning, field.values.empty() ? "nothing" : field.values,
      field.otherwise.empty() ? "must be given" : fmt::format("default {}", field.otherwise),
      field.is_source ? "; " + source_words() : "");
}

void print_operation(const OperationMeaning& operation) {
  print_stdout("{}\n",
               wrapped(fmt::format("{}: {}", operation.name, operation.formula), line_width(), 2));
  for (const FieldMeaning& field : operation.fields) print_row(field.name, about_field(field));
  print_stdout("  example\n    {}\n", operation.example);
}

Json to_json(const OperationMeaning& operation) {
  Json fields = Json::array();
  for (const FieldMeaning& field : operation.fields) {
    fields.push_back({{"field", field.name},
                      {"takes", field.values},
                      {"default", field.otherwise.empty() ? Json() : Json(field.otherwise)},
                      {"meaning", field.meaning}});
  }
  return {{"operation", operation.name},
          {"computes", operation.formula},
          {"example", operation.example},
          {"fields", fields}};
}

// The fields of a text that parse_problem() read, in the order of the canonical text.
struct GivenField {
  std::string_view name;
  std::string_view value;
  const FieldMeaning* meaning = nullptr;
};
std::vector<GivenField> given_fields(const OperationMeaning& operation, std::string_view text) {
  std::vector<GivenField> given;
  for (const std::string_view word : split_words(text)) {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = word.substr(0, equals);
    given.push_back({name, word.substr(equals + 1), find_field(operation, name)});
  }
  return given;
}

std::string meaning_of(const GivenField& field) {
  std::string text(field.meaning == nullptr ? "" : field.meaning->meaning);
  const std::array<std::string_view, 4> types{"a", "b", "x", "q"};
  if (std::ranges::find(types, field.name) != types.end() || field.name == "d") {
    if (const auto type = parse_tensor_type(field.value); type && is_fp8(type->dtype)) {
      text += fmt::format("; here {} with {} scales, one for {}", name_of(type->dtype),
                          name_of(type->scale), name_of(type->granularity));
    }
  }
  if (field.value == "?") text += "; here open";
  return text;
}

// Returns the recipes that have the problem's types.
std::vector<std::string> recipes_of(const Problem& problem) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (has_types_of(problem, recipe)) names.emplace_back(recipe.name);
  }
  return names;
}

// Returns the known devices for which kernels of the problem exist.
std::vector<std::string> devices_of(const Problem& problem) {
  std::vector<std::string> names;
  for (const DeviceSpec& device : known_devices()) {
    if (check_supported(problem, device)) names.push_back(device.name);
  }
  return names;
}

std::string tokens_text(const Problem& problem) {
  const TokenAxis axis = token_axis(problem);
  return axis.is_dynamic()
             ? fmt::format(
                   "{} is the token count; a plan serves every one of them, and each bucket "
                   "of counts has the kernel that is fastest for it",
                   axis.dimension)
             : fmt::format("{} is the token count, {}", axis.dimension, axis.tokens);
}

// The choice of a problem's configurations on a device that has kernels of it.
struct Chosen {
  DeviceSpec device;
  std::vector<CountChoice> choices;  // none: the device has no kernels of the problem
};
Result<Chosen> choose(const Problem& problem, const std::string& asked) {
  auto device = device_spec(asked.empty() ? "cuda" : asked);
  if (!device && asked.empty()) device = device_spec(kDefaultNamedDevice);
  if (!device) return tl::unexpected<Error>(device.error());
  if (!check_supported(problem, *device)) return Chosen{*device, {}};
  return choices_of(problem, *device).map([&](std::vector<CountChoice> choices) {
    return Chosen{*device, std::move(choices)};
  });
}

// Returns the units of the device that have kernels of the problem once their tests have passed.
std::vector<std::string> untested_units(const Problem& problem, const DeviceSpec& device) {
  std::vector<std::string> names;
  for (const MatrixUnit unit : device.unused_units) {
    DeviceSpec only = device.with_all_units();
    only.units = {unit};
    if (operation_of(problem) == "gemm" && check_supported(problem, only))
      names.emplace_back(name_of(unit));
  }
  return names;
}

void print_problem(const Problem& problem, const OperationMeaning& operation,
                   const Chosen& chosen) {
  const std::string text = to_text(problem);
  print_stdout("{}\n",
               wrapped(fmt::format("{}: {}", operation.name, operation.formula), line_width(), 2));
  const Status supported = check_supported(problem);
  if (!supported) print_row("supported", "no: " + supported.error().message);
  for (const GivenField& field : given_fields(operation, text)) {
    print_row(fmt::format("{}={}", field.name, field.value), meaning_of(field));
  }
  print_row("canonical text", text);
  print_row("tokens", tokens_text(problem));
  const auto recipes = recipes_of(problem);
  print_row("recipes", recipes.empty() ? "no recipe has these types"
                                       : fmt::format("{}", fmt::join(recipes, ", ")));
  if (supported) {
    print_row("supported", fmt::format("yes, on {}", fmt::join(devices_of(problem), ", ")));
    print_row("remark", std::string(support_of(problem).reason));
  }
  if (!chosen.choices.empty())
    print_row("chosen by, on " + chosen.device.name, choices_text(chosen.choices));
  for (const std::string& unit : untested_units(problem, chosen.device))
    print_row("unit " + unit,
              "serves on " + chosen.device.name +
                  " once its tests have passed on the card: compiled, emulated, proven on your "
                  "card at first use, never timed");
}

Json to_json(const Problem& problem, const OperationMeaning& operation, const Chosen& chosen) {
  const std::string text = to_text(problem);
  Json fields = Json::array();
  for (const GivenField& field : given_fields(operation, text)) {
    fields.push_back(
        {{"field", field.name}, {"value", field.value}, {"meaning", meaning_of(field)}});
  }
  const Status supported = check_supported(problem);
  return {
      {"problem", text},
      {"operation", operation.name},
      {"computes", operation.formula},
      {"fields", fields},
      {"token_axis", token_axis(problem).dimension},
      {"recipes", recipes_of(problem)},
      {"supported", supported.has_value()},
      {"devices", devices_of(problem)},
      {"device", chosen.device.name},
      {"configurations", to_json(chosen.choices)},
      {"untested_units", untested_units(problem, chosen.device)},
      {"remark", supported ? std::string(support_of(problem).reason) : supported.error().message}};
}

Status explain_all(bool json) {
  if (json) {
    Json all = Json::array();
    for (const OperationMeaning& operation : operation_meanings())
      all.push_back(to_json(operation));
    print_json(all);
    return {};
  }
  for (const OperationMeaning& operation : operation_meanings()) {
    print_operation(operation);
    print_stdout("\n");
  }
  return {};
}

std::string tokens_of(const Work& work) {
  std::vector<std::int64_t> counts;
  for (const TokenRange& range : work.tokens) counts.push_back(range.lo);
  return fmt::format("{}", fmt::join(counts, ", "));
}

// Prints the problems of models, each with its token counts and the first weight that needs it;
// with --device, also whether it has a kernel there. Returns false if one has none.
Result<bool> explain_models(const Options& options) {
  std::optional<DeviceSpec> device;
  if (!options.device.empty()) {
    auto found = device_spec(options.device);
    if (!found) return tl::unexpected<Error>(found.error());
    device = std::move(*found);
  }
  WorkOptions work;
  work.model = options.model;
  work.problem.recipe = options.recipe;
  work.problem.recipe_option = options.recipe_option;
  work.tokens = options.tokens;
  const auto works = work.read();
  if (!works) return tl::unexpected<Error>(works.error());
  Json problems = Json::array();
  bool all_supported = true;
  for (const Work& one : *works) {
    const std::string text = to_text(one.problem);
    const Status supported = device ? check_supported(one.problem, *device) : Status();
    all_supported = all_supported && supported;
    if (options.json) {
      Json counts = Json::array();
      for (const TokenRange& range : one.tokens) counts.push_back(range.lo);
      Json problem{{"problem", text}, {"weight", one.name}, {"tokens", std::move(counts)}};
      if (device) problem.add("supported", supported.has_value());
      problems.push_back(std::move(problem));
      continue;
    }
    print_stdout("{}\n", text);
    print_row("  of", one.name);
    print_row("  tokens", tokens_of(one));
    if (!device) continue;
    print_row("  on " + device->name,
              supported ? "has kernels" : "no kernel: " + supported.error().message);
  }
  if (options.json) {
    Json document{{"problems", std::move(problems)}};
    if (device) document.set("device", device->name);
    print_json(document);
  }
  return all_supported;
}

// Exit status besides 0 (done), 1 (failed) and 2 (bad usage).
constexpr int kUnsupported = 3;

Result<int> explain_problem(const Options& options) {
  const std::string text = fmt::format("{}", fmt::join(options.words, " "));
  if (const OperationMeaning* operation = find_operation(text)) {
    options.json ? print_json(to_json(*operation)) : print_operation(*operation);
    return 0;
  }
  ProblemOptions problem;
  problem.recipe = options.recipe;
  problem.recipe_option = options.recipe_option;
  problem.set_text(text);
  const auto read = problem.read();
  if (!read) return tl::unexpected<Error>(read.error());
  const OperationMeaning* operation = find_operation(operation_of(*read));
  if (operation == nullptr) return fail(ErrorCode::kInternal, "an operation has no explanation");
  const auto chosen = choose(*read, options.device);
  if (!chosen) return tl::unexpected<Error>(chosen.error());
  options.json ? print_json(to_json(*read, *operation, *chosen))
               : print_problem(*read, *operation, *chosen);
  return check_supported(*read) ? 0 : kUnsupported;
}

Result<int> run(const Options& options) {
  const std::string text = fmt::format("{}", fmt::join(options.words, " "));
  if (options.markdown && (!text.empty() || options.json)) {
    return refuse(
        fmt::format("--markdown is given with {}; allowed: alone, because it prints the "
                    "tables of all operations",
                    options.json ? "--json" : "a problem"));
  }
  if (!options.model.models.empty() && (!text.empty() || options.markdown)) {
    return refuse(fmt::format("--model is given with {}; allowed: one of the two",
                              text.empty() ? "--markdown" : "a problem"));
  }
  if (const std::string given = options.model.first_given();
      options.model.models.empty() && (!given.empty() || !options.tokens.empty())) {
    return refuse(fmt::format("{} without --model; allowed with --model only",
                              given.empty() ? "--tokens is given" : given));
  }
  if (!options.model.models.empty()) {
    return explain_models(options).map([](bool all) { return all ? 0 : kUnsupported; });
  }
  if (!options.device.empty() && (text.empty() || find_operation(text) != nullptr)) {
    return refuse(fmt::format("--device is {}; allowed with a problem and with --model only",
                              options.device));
  }
  if (options.recipe_option.is_given() &&
      (options.markdown || text.empty() || find_operation(text) != nullptr)) {
    return refuse(
        fmt::format("--recipe is {}; allowed with MxNxK and ROWSxCOLS only", options.recipe));
  }
  if (options.markdown) {
    print_stdout("{}", fields_markdown());
    return 0;
  }
  if (options.words.empty()) return explain_all(options.json).map([] { return 0; });
  return explain_problem(options);
}

}  // namespace

Command add_explain(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "explain", "explain each field of a problem, and say whether it has a kernel",
      "Exit status: 0 done, 1 failed, 2 bad usage, 3 the problem is well formed and has no kernel, "
      "130 interrupted.");
  auto options = std::make_shared<Options>();
  add_option(*app, "problem", options->words,
             "a canonical text, MxNxK, ROWSxCOLS, or an operation (gemm, quantize, dequantize, "
             "transpose); without it, all fields of all operations")
      .complete_with([] {
        std::vector<std::string> names;
        for (const OperationMeaning& operation : operation_meanings())
          names.emplace_back(operation.name);
        return names;
      });
  options->recipe_option =
      add_recipe_option(*app, options->recipe, "types and scales of a short form");
  options->model.add_to(*app);
  add_list(*app, "--tokens", options->tokens,
           "with --model: token counts, or ranges such as 1:256; default those of --mode");
  add_option(*app, "--device", options->device,
             "the GPU whose configurations are chosen: cuda (the default where there is one), "
             "cuda:N, or a name such as h200 (the default elsewhere)")
      .complete_with(supported_devices);
  add_flag(*app, "--markdown", options->markdown, "print the tables of docs/problems.md");
  add_json_option(*app, options->json);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
