// octile bench experts: the step of a model's experts beside bf16.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "tools/bench/experts.h"
#include "tools/bench/measurement.h"
#include "tools/bench/session.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/models/source.h"

namespace octile::tools {
namespace {

struct ExpertsOptions : SessionOptions {
  std::vector<std::string> models;
  std::int64_t ranks = 8;
  std::int64_t tokens = 8192;
  std::string recipe = "blockwise";
  std::string routing = "both";
};

Result<std::vector<Routing>> parse_routings(const std::string& text) {
  std::vector<Routing> both{Routing::kUniform, Routing::kSkewed};
  if (text == "both") return both;
  const auto one = std::ranges::find(both, text, [](Routing r) { return name_of(r); });
  if (one != both.end()) return std::vector<Routing>{*one};
  return refuse(fmt::format("--routing is '{}'; allowed: uniform, skewed, both", text));
}

Status check_experts_supported(const Recipe& recipe, const ExpertRank& rank) {
  Status ok = check_layer_supported(recipe, rank.gate_up_shape());
  if (ok) ok = check_layer_supported(recipe, rank.down_shape());
  return ok;
}

// Prints the steps of one model.
void print_steps(const ExpertRank& rank, const std::string& recipe,
                 const std::vector<std::vector<Record>>& steps) {
  print_stdout(
      "experts of {}: {} of them on each of {} ranks, {} rows for {} tokens, recipe {}\n\n",
      rank.model, rank.experts, rank.ranks, rank.rows, rank.tokens, recipe);
  for (const std::vector<Record>& records : steps) {
    const Record& step = step_of(records);
    print_stdout("{}, {:.0f} to {:.0f} rows an expert{}\n{}\n", step.what,
                 detail_of(step, "least_rows"), detail_of(step, "most_rows"),
                 step.ok ? "" : ": WRONG", step_text(records));
  }
  const Record& first = step_of(steps[0]);
  const double grouped = detail_of(first, "grouped_bf16_us");
  print_stdout(
      "{}\n", wrapped(fmt::format("bf16 is a GEMM for each expert, because cuBLASLt has no grouped "
                                  "ones. Those of frameworks, of equal groups, take {:.1f} us, "
                                  "estimated: {:.3f}x",
                                  grouped, grouped / first.values.median),
                      line_width(), 2));
  if (steps.size() != 2) return;
  const Record &uniform = step_of(steps[0]), &skewed = step_of(steps[1]);
  print_stdout("skewed takes {:.3f}x the time of uniform, in bf16 {:.3f}x\n",
               skewed.values.median / uniform.values.median,
               first_peer_values(skewed).median / first_peer_values(uniform).median);
}

Result<std::vector<ExpertRank>> read_ranks(const ExpertsOptions& options, const Recipe& recipe) {
  std::vector<ExpertRank> ranks;
  for (const std::string& name : options.models) {
    const auto file = find_model(name);
    if (!file) return tl::unexpected<Error>(file.error());
    auto rank = rank_of(*file, name, options.ranks, options.tokens);
    if (!rank) return tl::unexpected<Error>(rank.error());
    if (Status ok = check_experts_supported(recipe, *rank); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
    ranks.push_back(std::move(*rank));
  }
  return ranks;
}

Status run_experts(const ExpertsOptions& options) {
  const auto routings = parse_routings(options.routing);
  if (!routings) return tl::unexpected<Error>(routings.error());
  const auto recipe = recipe_of_option(options.recipe);
  if (!recipe) return tl::unexpected<Error>(recipe.error());
  const auto ranks = read_ranks(options, **recipe);
  if (!ranks) return tl::unexpected<Error>(ranks.error());
  const auto session = BenchSession::open("bench experts", options, true);
  if (!session) return tl::unexpected<Error>(session.error());
  std::vector<Record> all;
  Progress progress(progress_mode(false));
  for (std::size_t i = 0; i < ranks->size(); ++i) {
    progress.count(i, ranks->size(), "models timed");
    const auto steps = bench_experts(session->context(), **recipe, (*ranks)[i], *routings);
    if (!steps) return tl::unexpected<Error>(steps.error());
    progress.done();
    if (!options.json) print_steps((*ranks)[i], options.recipe, *steps);
    for (const std::vector<Record>& records : *steps) {
      if (Status ok = session->keep(records); !ok) return ok;
      all.insert(all.end(), records.begin(), records.end());
    }
  }
  return session->finish(all, "a GEMM is wrong");
}

// Returns the recipes of which every GEMM and quantiser of an expert exists.
std::vector<std::string> recipes_of_experts() {
  constexpr LayerShape kAnyLayer{4096, 4096, 4096, 8};
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) {
    if (check_layer_supported(recipe, kAnyLayer)) names.emplace_back(recipe.name);
  }
  return names;
}

}  // namespace

std::function<std::optional<Status>()> add_bench_experts(CLI::App& bench) {
  CLI::App* app = add_subcommand(
      bench, "experts",
      "time the step of a model's experts on one rank of expert parallelism: quantise X, W and dY, "
      "then fprop, dgrad and wgrad of gate_up and of down, beside the same GEMMs in bf16 by "
      "cuBLASLt, one for each expert, and an estimate of grouped ones, which cuBLASLt does not "
      "have");
  auto options = std::make_shared<ExpertsOptions>();
  add_list(*app, "--model", options->models, "models with experts: as --model of `octile tune`")
      .require()
      .complete_with(shipped_models_with_experts);
  add_option(*app, "--ep", options->ranks,
             "ranks of expert parallelism; each holds an equal share of the model's experts")
      .show_default();
  add_option(*app, "--tokens", options->tokens,
             "tokens of one rank; each goes to several experts (DeepSeek-V3: 8), so this rank's "
             "experts receive tokens times that many rows in all, 1/ep of them from each rank")
      .show_default();
  add_option(*app, "--recipe", options->recipe,
             fmt::format("types and scales: {}", fmt::join(recipes_of_experts(), ", ")))
      .show_default()
      .complete_with(recipes_of_experts);
  add_option(*app, "--routing", options->routing,
             "how rows are shared out, as a fixed seed draws it: uniform (every expert is equally "
             "likely), skewed (one expert has 40 % of the rows and a third of the experts have "
             "none), or both")
      .show_default()
      .complete_with([] { return std::vector<std::string>{"uniform", "skewed", "both"}; });
  add_timing_options(*app, *options);
  add_json_option(*app, options->json);
  return when_given(app, options, run_experts);
}

}  // namespace octile::tools
