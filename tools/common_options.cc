// Options that mean the same in every subcommand.
#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"
#include "runtime/engine/target.h"
#include "tools/command.h"

namespace octile::tools {

void ProblemOptions::add_to(CLI::App& app) {
  add_option(app, "--gemm", gemm, "D[m,n] = A[m,k] B[n,k]^T, as MxNxK; M may be ?");
  add_option(app, "--quantize", quantize, "a tensor to quantise, as ROWSxCOLS; ROWS may be ?");
  add_option(app, "--problem", problem, "a problem's canonical text");
  add_option(app, "--recipe", recipe, "how scales are kept: " + recipe_names()).show_default();
}

Result<Problem> ProblemOptions::read() const {
  const int count = (gemm.empty() ? 0 : 1) + (quantize.empty() ? 0 : 1) + (problem.empty() ? 0 : 1);
  if (count != 1) {
    return refuse(fmt::format(
        "{} of --gemm, --quantize and --problem are given; exactly one is allowed", count));
  }
  if (!problem.empty()) return parse_problem(problem);
  if (!gemm.empty()) return parse_gemm_shape(gemm, recipe).map([](auto p) { return Problem(p); });
  return parse_quantize_shape(quantize, recipe).map([](auto p) { return Problem(p); });
}

void WorkOptions::add_to(CLI::App& app, const std::string& default_tokens) {
  problem.add_to(app);
  add_option(app, "--model", model,
             "the linear layers of a model: a file, or one of " + model_names());
  add_tokens_option(app, tokens, default_tokens + ", with --model those of the model");
}

Result<std::vector<Work>> WorkOptions::read(const std::vector<std::int64_t>& default_tokens) const {
  if (!model.empty()) {
    if (problem.given()) {
      return refuse("--model is given beside a problem; allowed is one of the two");
    }
    const auto file = find_model(model);
    if (!file) return tl::unexpected<Error>(file.error());
    return work_of_layers(*file, problem.recipe, tokens);
  }
  const auto one = problem.read();
  if (!one) return tl::unexpected<Error>(one.error());
  return work_of_problem(one, tokens.empty() ? counts_for(*one, default_tokens) : tokens);
}

Result<DeviceSpec> device_spec(const std::string& name) {
  auto target = resolve_target(name);
  if (!target) return tl::unexpected<Error>(target.error());
  if (target->kind == TargetKind::kHost) {
    return refuse(fmt::format("--device is host, which runs no kernels; allowed: {}, cuda, cuda:N",
                              known_device_names()));
  }
  return target->spec;
}

ProgressMode progress_mode(bool always) {
  return always ? ProgressMode::kAlways : ProgressMode::kAuto;
}

void add_models_option(CLI::App& app, std::vector<std::string>& models) {
  add_option(app, "--model", models,
             "the linear layers of models: files, or some of " + model_names())
      .split_at_commas();
}

void add_tokens_option(CLI::App& app, std::vector<std::int64_t>& tokens,
                       const std::string& default_tokens) {
  add_option(app, "--tokens", tokens,
             "token counts (a quantiser's rows), where a problem leaves them open; default " +
                 default_tokens)
      .split_at_commas();
}

void add_target_option(CLI::App& app, std::string& device, const std::string& what) {
  add_option(app, "--device", device, what + ": " + known_device_names() + ", cuda, cuda:N")
      .show_default();
}

void add_jobs_option(CLI::App& app, int& jobs) {
  add_option(app, "--jobs", jobs, "kernels compiled at a time; default one per core");
}

void add_json_option(CLI::App& app, bool& json) {
  add_flag(app, "--json", json, "print JSON and nothing else to stdout");
}

void add_progress_option(CLI::App& app, bool& always) {
  add_flag(app, "--progress", always, "show progress on stderr also where that is no terminal");
}

void print_json(const Json& document) {
  // Text from outside (a device's name, a path) need not be UTF-8.
  fmt::print("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
}

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace octile::tools
