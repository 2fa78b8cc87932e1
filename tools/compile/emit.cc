// octile emit: prints the CUDA source of one kernel.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "runtime/engine/engine.h"
#include "tools/command.h"
#include "tools/common/handles.h"
#include "tools/common/output.h"
#include "tools/common/output_file.h"
#include "tools/common/terminal.h"
#include "tools/compile/dump.h"

namespace octile::tools {
namespace {

struct EmitOptions {
  ProblemOptions problem;
  std::string device = "h200";
  std::int64_t tokens = 4096;
  Option tokens_option;
  std::string config;
  std::string output;
  std::string dump;
  bool explain = false;
  bool json = false;
};

// The configuration to emit. --config states it without a choice.
struct Wanted {
  KernelConfig config;
  std::optional<Choice> choice;
};

Result<Wanted> wanted_config(const EmitOptions& options, const Problem& problem,
                             const DeviceSpec& device) {
  if (options.config.empty()) {
    const auto library = LibraryHandle::create();
    if (!library) return tl::unexpected<Error>(library.error());
    const TokenAxis axis = token_axis(problem);
    Choice choice = library->get()->library.engine.choose_config(
        problem, axis.is_dynamic() ? options.tokens : axis.tokens, device);
    return Wanted{choice.config, std::move(choice)};
  }
  return parse_config(problem, options.config).map([](const KernelConfig& config) {
    return Wanted{config, std::nullopt};
  });
}

// Returns what chose the configuration. If a tuning record timed another source than today's, the
// text says so, and what to do.
std::string chosen_by_text(const Wanted& wanted, const EmittedKernel& kernel,
                           const DeviceSpec& device) {
  if (!wanted.choice) return "the command line";
  const auto& record = wanted.choice->record;
  if (!record || record->source_digest.empty()) return wanted.choice->reason;
  const std::string digest = cache::digest_hex(cache::key_text(identity_of(kernel, device)));
  return wanted.choice->reason +
         (digest == record->source_digest
              ? ""
              : "; the kernel's source has changed since: `octile tune --refresh` times it again");
}

Json to_json(const Problem& problem, const EmittedKernel& kernel, const std::string& chosen_by,
             const std::string& explanation) {
  return {{"problem", to_text(problem)},      {"name", kernel.name},
          {"template", kernel.template_path}, {"config", kernel.config_text},
          {"options", kernel.options},        {"threads", kernel.threads},
          {"smem_bytes", kernel.smem_bytes},  {"cluster", kernel.cluster},
          {"chosen_by", chosen_by},           {"explain", explanation},
          {"source", kernel.source}};
}

Status write(const std::string& path, const std::string& text) {
  if (!path.empty() && path != "-") return write_output_file(path, text);
  print_stdout("{}", text);
  return {};
}

// Returns the lines of an explanation in the terminal's width. The purpose of a constant continues
// where it begins.
std::string fitted(std::string_view explanation) {
  std::string text;
  while (!explanation.empty()) {
    const std::string_view line = explanation.substr(0, explanation.find('\n'));
    explanation.remove_prefix(std::min(line.size() + 1, explanation.size()));
    const std::size_t reason = line.find("  (");
    text += wrapped(line, line_width(), reason == std::string_view::npos ? 2 : reason + 3) + "\n";
  }
  return text;
}

Status check_options(const EmitOptions& options, const Problem& problem) {
  if (options.tokens_option.is_given() && !options.config.empty()) {
    return refuse(
        "--tokens and --config are given; allowed: one of them, because the token count "
        "chooses the configuration");
  }
  if (!options.dump.empty() && (options.explain || !options.output.empty())) {
    return refuse(fmt::format("--dump and {} are given; allowed: one of them",
                              options.explain ? "--explain" : "--output"));
  }
  return check_tokens_option(options.tokens_option, problem, options.tokens);
}

Status run_emit(const EmitOptions& options) {
  const auto problem = options.problem.read();
  if (!problem) return tl::unexpected<Error>(problem.error());
  if (Status ok = check_options(options, *problem); !ok) return ok;
  if (Status ok = check_supported(*problem); !ok) return ok;
  const auto device = device_spec(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  const bool is_stated = !options.config.empty();
  if (Status ok = check_supported(*problem, is_stated ? device->with_all_units() : *device); !ok)
    return ok;
  const auto wanted = wanted_config(options, *problem, *device);
  if (!wanted) return tl::unexpected<Error>(wanted.error());
  const auto kernel = emit(*problem, wanted->config, *device, embedded_templates());
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  if (!options.dump.empty()) {
    return dump_kernel(*problem, wanted->config, *device, options.dump, options.json);
  }
  const std::string chosen_by = chosen_by_text(*wanted, *kernel, *device);
  const std::string explanation =
      fmt::format("chosen by = {}\n", chosen_by) + explain(*problem, wanted->config, *device);
  if (options.json) {
    return write(options.output, to_json(*problem, *kernel, chosen_by, explanation).dump(2) + "\n");
  }
  if (!options.explain) return write(options.output, kernel->source);
  return write(options.output, options.output.empty() ? fitted(explanation) : explanation);
}

}  // namespace

Command add_emit(CLI::App& root) {
  CLI::App* app = add_subcommand(root, "emit", "print the CUDA source of one kernel");
  auto options = std::make_shared<EmitOptions>();
  options->problem.add_to(*app);
  add_target_option(*app, options->device, "the device to generate for");
  options->tokens_option = add_tokens_option(*app, options->tokens);
  add_option(*app, "--config", options->config, "configuration text instead of the chosen one");
  add_option(*app, "-o,--output", options->output, "file to write instead of stdout");
  add_flag(*app, "--explain", options->explain,
           "print instead what chose the configuration, and what shape, recipe and configuration "
           "changed in the source, and why");
  add_option(*app, "--dump", options->dump,
             "a folder for the kernel's source, cubin, machine code and resources, side by side; "
             "compiles it unless the cache has it");
  add_json_option(*app, options->json);
  return {app, [options] { return run_emit(*options); }};
}

}  // namespace octile::tools
