// Options that several subcommands share.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "generator/core/device_spec.h"
#include "generator/core/nearest.h"
#include "generator/core/recipe.h"
#include "generator/core/text_fields.h"
#include "generator/gemm/passes.h"
#include "runtime/engine/target.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/models/problem_file.h"

namespace octile::tools {
namespace {

// Texts that a shell offers for --problem.
std::vector<std::string> example_problems() {
  return {"gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
          "gemm m=7168 n=2048 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128",
          "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row",
          "dequantize rows=? cols=7168 x=e4m3:1x128 q=bf16 out=row",
          "transpose rows=? cols=7168 x=e4m3:128x128 q=e4m3:128x128 out=col"};
}

std::vector<std::string> all_pass_names() { return {"fprop", "dgrad", "wgrad"}; }

// Adds the work of one request. If it has no counts, `counts` are those of an open token count.
Status add_work(const Request& request, const std::vector<std::int64_t>& counts,
                std::vector<Work>& works) {
  if (Status ok = check_supported(request.problem); !ok) return ok;
  auto work =
      work_of_problem(request.problem, request.counts.empty() ? counts_for(request.problem, counts)
                                                              : request.counts);
  if (!work) return tl::unexpected<Error>(work.error());
  std::ranges::move(*work, std::back_inserter(works));
  return {};
}

}  // namespace

void ProblemOptions::add_to(CLI::App& app) {
  add_option(app, "--gemm", gemm,
             "a GEMM D[m,n] = A[m,k] B[n,k]^T, as MxNxK: N a multiple of 8; M may be _ (or '?'), "
             "which leaves the token count open");
  add_option(app, "--quantize", quantize,
             "a tensor to quantise, as ROWSxCOLS; ROWS may be _ (or '?')");
  add_option(app, "--problem", problem,
             "a problem's canonical text, whose fields `octile explain` lists")
      .complete_with(example_problems);
  recipe_option = add_recipe_option(
      app, recipe,
      "types and scales of a short form, and of models, for which it is auto (what the checkpoint "
      "says, else blockwise) unless it is given");
}

void ProblemOptions::set_text(const std::string& text) {
  const bool is_shape =
      !text.empty() && text.find_first_not_of("0123456789x?_") == std::string::npos;
  std::string& to = !is_shape ? problem : std::ranges::count(text, 'x') == 1 ? quantize : gemm;
  to = text;
}

Result<Problem> ProblemOptions::read() const {
  const int count = (gemm.empty() ? 0 : 1) + (quantize.empty() ? 0 : 1) + (problem.empty() ? 0 : 1);
  if (count != 1) {
    return refuse(
        fmt::format("{} of --gemm, --quantize and --problem are given; exactly one is allowed",
                    count == 0 ? "none" : std::to_string(count)));
  }
  if (!problem.empty()) {
    auto read = parse_problem(problem);
    if (read && recipe_option.is_given()) {
      return refuse(
          fmt::format("--recipe is {}, and the problem's text states its types; allowed with MxNxK "
                      "and ROWSxCOLS only",
                      recipe));
    }
    return read;
  }
  if (const auto known = recipe_of_option(recipe); !known) {
    return tl::unexpected<Error>(known.error());
  }
  if (!gemm.empty()) return parse_gemm_shape(gemm, recipe).map([](auto p) { return Problem(p); });
  return parse_quantize_shape(quantize, recipe).map([](auto p) { return Problem(p); });
}

void WorkOptions::add_to(CLI::App& app, const std::string& default_tokens) {
  problem.add_to(app);
  add_option(app, "--problem-file", problem_file,
             "a file of one problem a line: a canonical text or MxNxK; # begins a comment");
  model.add_to(app);
  add_list(app, "--passes", passes,
           "passes of the linear layers of --gemm, --model and MxNxK: some of " + pass_names() +
               "; default fprop, of a model those of its mode")
      .complete_with(all_pass_names);
  add_list(app, "--tokens", tokens,
           "token counts (a quantiser's rows) of problems that leave them open, or ranges such as "
           "1:256, which double; default " +
               default_tokens);
}

void WorkOptions::add_user_to(CLI::App& app) {
  add_option(app, "--for,--serving", user,
             "with --model: torch, for the problems that octile.torch asks of a model in bf16 to "
             "train and to infer, of which --passes fprop leaves those of training out; vllm, "
             "sglang, for those that the plug-in asks of dense layers, at 1 to the largest of the "
             "token counts")
      .complete_with(layer_user_names);
}

Status WorkOptions::check() const {
  const bool has_model = !model.models.empty();
  const int sources =
      (problem.given() ? 1 : 0) + (has_model ? 1 : 0) + (problem_file.empty() ? 0 : 1);
  if (sources != 1) {
    return refuse(
        fmt::format("{} of --gemm, --quantize, --problem, --problem-file and --model are given; "
                    "exactly one is allowed",
                    sources == 0 ? "none" : std::to_string(sources)));
  }
  const std::string of_model =
      user.empty() ? model.first_given() : fmt::format("--for is {}", user);
  if (!of_model.empty() && !has_model) {
    return refuse(fmt::format("{} without --model; allowed with --model only", of_model));
  }
  if (Status ok = model.check(); !ok) return ok;
  if (passes.empty() || !problem.given() || !problem.gemm.empty()) return {};
  return refuse(
      fmt::format("--passes is given with {}; allowed with --gemm, --model and --problem-file only",
                  problem.problem.empty() ? "--quantize" : "--problem"));
}

Result<std::vector<Pass>> WorkOptions::read_passes() const {
  if (passes.empty() && user == "torch") {
    return std::vector<Pass>{Pass::kFprop, Pass::kDgrad, Pass::kWgrad};
  }
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
  auto works = !model.models.empty()   ? read_models()
               : !problem_file.empty() ? read_problem_file(tokens.empty() ? default_tokens : tokens)
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

Status WorkOptions::for_each_in_file(const std::function<Status(const Request&)>& use) const {
  const auto passes_read = read_passes();
  if (!passes_read) return tl::unexpected<Error>(passes_read.error());
  bool has_shapes = false;
  bool has_open = false;
  const auto note = [&](const Request& request, bool is_shape) {
    has_shapes = has_shapes || is_shape;
    has_open = has_open || (request.counts.empty() && token_axis(request.problem).is_dynamic());
    return use(request);
  };
  if (Status ok = for_each_problem(problem_file, problem.recipe, *passes_read, note); !ok)
    return ok;
  const auto idle = [&](const char* option, const char* rule) {
    return refuse(fmt::format("{} is given, and no line of {} is {}", option, problem_file, rule));
  };
  if (problem.recipe_option.is_given() && !has_shapes) return idle("--recipe", "an MxNxK");
  if (!passes.empty() && !has_shapes) return idle("--passes", "an MxNxK");
  if (!tokens.empty() && !has_open) return idle("--tokens", "a problem with ? for its tokens");
  return {};
}

WorkOptions::Works WorkOptions::read_problem_file(const std::vector<std::int64_t>& counts) const {
  std::vector<Work> works;
  const Status ok =
      for_each_in_file([&](const Request& request) { return add_work(request, counts, works); });
  if (!ok) return tl::unexpected<Error>(ok.error());
  return works;
}

WorkOptions::Works WorkOptions::read_models() const {
  const auto layer_user = layer_user_of_option(user);
  if (!layer_user) return tl::unexpected<Error>(layer_user.error());
  ModelUse use = model.use();
  use.counts = tokens;
  use.user = *layer_user;
  if (!passes.empty() || *layer_user == LayerUser::kTorch) {
    const auto given = read_passes();
    if (!given) return tl::unexpected<Error>(given.error());
    use.passes = *given;
  }
  const bool trains = std::ranges::find(use.modes, Mode::kTraining) != use.modes.end();
  if (is_engine(*layer_user) && (trains || !passes.empty())) {
    return refuse(
        fmt::format("{} is given with --for {}; allowed: decode, prefill or serving as "
                    "--mode, and no --passes",
                    trains ? "--mode training" : "--passes", user));
  }
  if (*layer_user == LayerUser::kTorch && !use.modes_given) use.modes.push_back(Mode::kTraining);
  std::vector<Work> works;
  for (const std::string& name : model.models) {
    const auto rank = model.read(name, problem.recipe_option.is_given() ? problem.recipe : "auto");
    if (!rank) return tl::unexpected<Error>(rank.error());
    auto some = works_of_model(*rank, use);
    if (!some) return some;
    std::ranges::move(*some, std::back_inserter(works));
  }
  return works;
}

Result<DeviceSpec> device_spec(const std::string& name) {
  if (Status ok = check_device_name(name, false); !ok) return tl::unexpected<Error>(ok.error());
  return resolve_target(name).map([](const Target& target) { return target.spec; });
}

Status check_device_name(const std::string& name, bool host_allowed) {
  const bool live = name == "cuda" || name.starts_with("cuda:");
  if (live || find_device(name) != nullptr || (host_allowed && name == "host")) return {};
  const std::string older = older_capability(name);
  const std::string why = name == "host" ? ", which runs no kernels"
                          : older.empty()
                              ? did_you_mean(name, known_device_names())
                              : fmt::format(", of compute capability {}: FP8 needs {} or newer",
                                            older, kOldestCapability);
  return refuse(fmt::format("--device is '{}'{}; allowed: {}, cuda, cuda:N{}", name, why,
                            supported_device_names(), host_allowed ? ", host" : ""));
}

std::vector<std::string_view> known_device_names() {
  std::vector<std::string_view> names;
  for (const DeviceSpec& device : known_devices()) names.push_back(device.name);
  return names;
}

Error needs_gpu(std::string_view verb, const Error& error) {
  return {error.code, fmt::format("`octile {}` needs a GPU: {}", verb, error.message)};
}

ProgressMode progress_mode(bool always) {
  return always ? ProgressMode::kAlways : ProgressMode::kAuto;
}

void add_target_option(CLI::App& app, std::string& device, const std::string& what) {
  add_option(app, "--device", device,
             fmt::format("{}: {}, cuda, cuda:N", what, supported_device_names()))
      .show_default()
      .complete_with([] {
        std::vector<std::string> names = supported_devices();
        names.emplace_back("cuda");
        return names;
      });
}

void add_gpu_option(CLI::App& app, std::string& device) {
  add_option(app, "--device", device, "the GPU: cuda or cuda:N").show_default().complete_with([] {
    return std::vector<std::string>{"cuda", "cuda:0", "cuda:1"};
  });
}

Option add_recipe_option(CLI::App& app, std::string& recipe, const std::string& what) {
  return add_option(app, "--recipe", recipe, what + ": " + recipe_names())
      .show_default()
      .complete_with(recipe_name_list);
}

Option add_tokens_option(CLI::App& app, std::int64_t& tokens) {
  return add_option(app, "--tokens", tokens, "token count, if the problem leaves it open")
      .show_default()
      .in_range(1, kMostCount);
}

Status check_tokens_option(const Option& option, const Problem& problem, std::int64_t tokens) {
  return option.is_given() ? check_counts(problem, {tokens}) : Status();
}

void add_baseline_option(CLI::App& app, std::string& baseline, const std::string& what) {
  add_option(app, "--baseline", baseline, what).complete_with([] {
    return std::vector<std::string>{"cublaslt"};
  });
}

void add_jobs_option(CLI::App& app, int& jobs) {
  constexpr int kMostJobs = 1024;
  add_option(app, "--jobs", jobs, "kernels compiled at a time; 0: one per core")
      .show_default()
      .in_range(0, kMostJobs);
}

void add_json_option(CLI::App& app, bool& json) {
  add_flag(app, "--json", json, "print JSON and nothing else to stdout");
}

void add_wide_option(CLI::App& app, bool& wide) {
  add_flag(app, "--wide", wide, "print every column in full, however wide the terminal is");
}

void add_progress_option(CLI::App& app, bool& always) {
  add_flag(app, "--progress", always, "show progress on stderr even if it is not a terminal");
}

void add_records_option(CLI::App& app, std::string& path) {
  add_option(
      app, "--records", path,
      "a file that gets a line of JSON for each measurement; OCTILE_COMMIT names the commit");
}

void print_json(const Json& document) {
  // A device's name or a path need not be UTF-8. Only ASCII is printed, so that no control
  // character is among it.
  print_stdout("{}\n", document.dump_ascii(2));
}

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace octile::tools
