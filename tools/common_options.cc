// Options that several subcommands share.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"
#include "runtime/engine/target.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/models/problem_file.h"

namespace octile::tools {
namespace {

// Adds the work of one request. If it has no counts, `counts` are those of an open token count.
Status add_work(const Request& request, const std::vector<std::int64_t>& counts,
                std::vector<Work>& works) {
  auto work =
      work_of_problem(request.problem, request.counts.empty() ? counts_for(request.problem, counts)
                                                              : request.counts);
  if (!work) return tl::unexpected<Error>(work.error());
  std::ranges::move(*work, std::back_inserter(works));
  return {};
}

}  // namespace

void ProblemOptions::add_to(CLI::App& app) {
  add_option(app, "--gemm", gemm, "a GEMM D[m,n] = A[m,k] B[n,k]^T, as MxNxK; M may be ?");
  add_option(app, "--quantize", quantize, "a tensor to quantise, as ROWSxCOLS; ROWS may be ?");
  add_option(app, "--problem", problem, "a problem's canonical text");
  add_option(app, "--recipe", recipe, "types and scales of a short form: " + recipe_names())
      .show_default();
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
  add_option(app, "--problem-file", problem_file,
             "a file of one problem a line: a canonical text or MxNxK; # begins a comment");
  add_option(app, "--model", models,
             "the linear layers of models: files, or some of " + model_names())
      .split_at_commas();
  add_option(app, "--passes", passes,
             "passes of the linear layers of --gemm, --model and MxNxK: some of " + pass_names() +
                 "; default fprop")
      .split_at_commas();
  add_option(
      app, "--ep", ranks,
      "with --model: also the experts of one of so many ranks, as GEMMs of contiguous groups. "
      "--tokens are a rank's tokens: its experts receive a row for each expert of each token");
  add_option(app, "--tokens", tokens,
             "token counts (a quantiser's rows) of problems that leave them open; default " +
                 default_tokens)
      .split_at_commas();
}

Status WorkOptions::check() const {
  const int sources =
      (problem.given() ? 1 : 0) + (models.empty() ? 0 : 1) + (problem_file.empty() ? 0 : 1);
  if (sources != 1) {
    return refuse(
        fmt::format("{} of a single problem (--gemm, --quantize, --problem), --problem-file and "
                    "--model are given; exactly one is allowed",
                    sources));
  }
  if (ranks && models.empty()) {
    return refuse(fmt::format("--ep is {} without --model; allowed with --model only", *ranks));
  }
  if (passes.empty() || !problem.given() || !problem.gemm.empty()) return {};
  return refuse(
      fmt::format("--passes is given with {}; allowed with --gemm, --model and --problem-file only",
                  problem.problem.empty() ? "--quantize" : "--problem"));
}

Result<std::vector<Pass>> WorkOptions::read_passes() const {
  if (passes.empty()) return std::vector<Pass>{Pass::kFprop};
  std::vector<Pass> read;
  for (const std::string& name : passes) {
    const auto pass = find_pass(name);
    if (!pass) return refuse(fmt::format("--passes has '{}'; allowed: {}", name, pass_names()));
    if (std::ranges::find(read, *pass) == read.end()) read.push_back(*pass);
  }
  return read;
}

Result<std::vector<Request>> WorkOptions::read_problem() const {
  const auto one = problem.read();  // also refuses two problems
  if (!one) return tl::unexpected<Error>(one.error());
  if (problem.gemm.empty()) return std::vector<Request>{{*one, tokens}};
  const auto of_layer = read_passes();
  if (!of_layer) return tl::unexpected<Error>(of_layer.error());
  return gemms_of_shape(problem.gemm, problem.recipe, *of_layer, tokens);
}

Result<std::vector<Work>> WorkOptions::read(const std::vector<std::int64_t>& default_tokens) const {
  if (Status ok = check(); !ok) return tl::unexpected<Error>(ok.error());
  const auto of_layers = read_passes();
  if (!of_layers) return tl::unexpected<Error>(of_layers.error());
  auto works = !models.empty() ? read_models(*of_layers)
               : !problem_file.empty()
                   ? read_problem_file(*of_layers, tokens.empty() ? default_tokens : tokens)
                   : read_single(default_tokens);
  if (!works) return works;
  return distinct(std::move(*works));
}

WorkOptions::Works WorkOptions::read_single(const std::vector<std::int64_t>& default_tokens) const {
  const auto requests = read_problem();
  if (!requests) return tl::unexpected<Error>(requests.error());
  std::vector<Work> works;
  for (const Request& request : *requests) {
    if (Status ok = add_work(request, default_tokens, works); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
  }
  return works;
}

WorkOptions::Works WorkOptions::read_problem_file(const std::vector<Pass>& passes_read,
                                                  const std::vector<std::int64_t>& counts) const {
  std::vector<Work> works;
  const Status ok =
      for_each_problem(problem_file, problem.recipe, passes_read,
                       [&](const Request& request) { return add_work(request, counts, works); });
  if (!ok) return tl::unexpected<Error>(ok.error());
  return works;
}

WorkOptions::Works WorkOptions::read_models(const std::vector<Pass>& passes_read) const {
  std::vector<Work> works;
  for (const std::string& name : models) {
    const auto model = find_model(name);
    if (!model) return tl::unexpected<Error>(model.error());
    auto layers = work_of_layers(*model, problem.recipe, passes_read, tokens);
    if (!layers) return layers;
    std::ranges::move(*layers, std::back_inserter(works));
    if (!ranks) continue;
    const auto share = share_of_experts(*model, name, *ranks);
    if (!share) return tl::unexpected<Error>(share.error());
    auto experts = work_of_experts(*model, *share, problem.recipe, passes_read, tokens);
    if (!experts) return experts;
    std::ranges::move(*experts, std::back_inserter(works));
  }
  return works;
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
  add_flag(app, "--progress", always, "show progress on stderr even if it is no terminal");
}

void print_json(const Json& document) {
  // A device's name or a path need not be UTF-8. Only ASCII is printed, so that no control
  // character is among it.
  print_stdout("{}\n", document.dump(2, ' ', true, Json::error_handler_t::replace));
}

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace octile::tools
