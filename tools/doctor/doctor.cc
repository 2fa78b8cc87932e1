// octile doctor: prints what this machine has, what is missing, and what that costs.
#include <fmt/format.h>

#include <memory>

#include "generator/families.h"
#include "runtime/environment.h"
#include "tools/command.h"
#include "tools/common/text_table.h"
#include "tools/doctor/surroundings.h"

namespace octile::tools {
namespace {

struct Options {
  bool json = false;
  bool matrix = false;
};

Json environment_json() {
  Json variables = Json::array();
  for (const EnvironmentVariable& v : environment_variables()) {
    const auto value = environment_value(v.name);
    variables.push_back(
        {{"name", v.name}, {"meaning", v.meaning}, {"value", value ? Json(*value) : Json()}});
  }
  return variables;
}

std::string environment_table() {
  TextTable table({"<variable", "<value", "<meaning"});
  for (const EnvironmentVariable& v : environment_variables()) {
    table.add_row(
        {std::string(v.name), environment_value(v.name).value_or("-"), std::string(v.meaning)});
  }
  return table.render();
}

Json matrix_json() {
  Json rows = Json::array();
  for (const SupportRow& row : support_matrix()) {
    rows.push_back({{"operation", row.operation},
                    {"problem", row.pattern},
                    {"supported", row.supported},
                    {"remark", row.reason}});
  }
  return rows;
}

void print_text(const Surroundings& s) {
  const auto found = [](const std::string& path, const std::string& version) {
    return path.empty() ? std::string("missing") : fmt::format("{} ({})", version, path);
  };
  fmt::print("driver     {}\n", found(s.driver_path, s.driver_version));
  for (const FoundDevice& d : s.devices) {
    fmt::print("device     cuda:{}: {}, {}, {} SMs{}\n", d.ordinal, d.spec.full_name, d.spec.arch(),
               d.spec.sm_count, d.usable ? "" : ": no kernel here runs on it");
  }
  fmt::print("NVRTC      {}\n", found(s.nvrtc_path, s.nvrtc_version));
  fmt::print("compiles   {}\n",
             s.compiler_program.empty() ? "in the calling process" : "in " + s.compiler_program);
  fmt::print("cache      {}{}\n", s.cache_root.empty() ? "none" : s.cache_root,
             s.cache_writable ? "" : ": not writable");
  for (const std::string& root : s.read_only_roots) fmt::print("cache      {} (read only)\n", root);
  if (s.tuning.empty()) fmt::print("tuning     off: every kernel is the cost model's choice\n");
  for (const cache::TuningSet::Source& source : s.tuning) {
    fmt::print("tuning     {} record{} in {}\n", source.records, source.records == 1 ? "" : "s",
               source.origin);
  }
  fmt::print("\nenvironment\n{}", environment_table());
  if (s.missing.empty()) {
    fmt::print("\nnothing is missing\n");
  } else {
    fmt::print("\nmissing\n{}", missing_text(s));
  }
}

Status run(const Options& options) {
  if (options.matrix) {
    if (options.json) {
      print_json(matrix_json());
    } else {
      fmt::print("{}", support_matrix_markdown());
    }
    return {};
  }
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const Surroundings surroundings = look_around(*library);
  if (!options.json) {
    print_text(surroundings);
    return {};
  }
  Json document = to_json(surroundings);
  document["environment"] = environment_json();
  print_json(document);
  return {};
}

}  // namespace

Command add_doctor(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "doctor", "print what this machine has, what is missing, and what that costs");
  auto options = std::make_shared<Options>();
  add_json_option(*app, options->json);
  add_flag(*app, "--matrix", options->matrix,
           "print instead which combinations of types are supported");
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
