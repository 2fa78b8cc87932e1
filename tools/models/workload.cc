#include "tools/models/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "generator/core/nearest.h"
#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"
#include "runtime/layers/uses.h"
#include "tools/models/shipped_models.h"

namespace octile::tools {
namespace {

Result<std::vector<TokenRange>> ranges_of(const std::vector<std::int64_t>& counts) {
  std::vector<TokenRange> ranges;
  for (const std::int64_t count : counts) {
    if (count < 1) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--tokens has {}; allowed are counts of 1 and more", count));
    }
    ranges.push_back({count, count});
  }
  return ranges;
}

bool has(const std::vector<Pass>& passes, Pass pass) {
  return std::ranges::find(passes, pass) != passes.end();
}

// Returns nothing if no pass reads the tensor. `by_row` and `by_col` read its rows and its columns.
std::optional<QuantizeProblem> quantize_problem(std::int64_t rows, std::int64_t cols,
                                                const TensorType& type, bool by_row, bool by_col) {
  if (!by_row && !by_col) return std::nullopt;
  QuantizeProblem problem;
  problem.rows = rows;
  problem.cols = cols;
  problem.q = type;
  problem.output = !by_col   ? QuantizeOutput::kRowwise
                   : !by_row ? QuantizeOutput::kTransposed
                             : QuantizeOutput::kBoth;
  return problem;
}

struct Layer {
  std::string name;
  std::int64_t n = 0, k = 0;
  std::int64_t experts = 0;  // 0: one weight for all tokens
};

// The works of layers for one user and one recipe.
struct LayerWorks {
  const Recipe& recipe;
  const std::vector<Pass>& passes;
  const std::vector<TokenRange>& tokens;
  std::vector<Work>& works;
};

void add_library_layer(const Layer& layer, const LayerWorks& all) {
  const auto& [recipe, passes, tokens, works] = all;
  const auto [fprop, dgrad, wgrad] =
      std::array{has(passes, Pass::kFprop), has(passes, Pass::kDgrad), has(passes, Pass::kWgrad)};
  for (const Pass pass : passes) {
    const std::string name =
        pass == Pass::kFprop ? layer.name : fmt::format("{}, {}", layer.name, name_of(pass));
    works.push_back(
        {name, gemm_problem(recipe, pass, kDynamic, layer.n, layer.k, layer.experts), tokens});
  }
  const auto add = [&](const char* operand, std::optional<QuantizeProblem> problem,
                       const std::vector<TokenRange>& rows) {
    if (!problem) return;
    if (layer.experts > 0 && problem->rows == kDynamic) problem->grouping = Grouping::kContiguous;
    works.push_back({fmt::format("{}, {}", layer.name, operand), *problem, rows});
  };
  add("activation", quantize_problem(kDynamic, layer.k, recipe.activation, fprop, wgrad), tokens);
  add("weight", quantize_problem(layer.n, layer.k, recipe.weight, fprop, dgrad),
      {{layer.n, layer.n}});
  add("gradient", quantize_problem(kDynamic, layer.n, recipe.gradient, dgrad, wgrad), tokens);
}

// What the calls of octile.torch are used for: forward passes with and without gradients, and
// backward passes with those of X, of W or of both. A pass makes the copies of W that it reads, one
// or both, or finds them made; a forward pass may compare W with what they were made from. A
// backward pass may quantise X again.
std::vector<std::uint32_t> torch_uses(const std::vector<Pass>& passes) {
  const std::uint32_t dx = has(passes, Pass::kDgrad) ? OCTILE_LAYER_INPUT_GRADIENT : 0;
  const std::uint32_t dw =
      has(passes, Pass::kWgrad) ? OCTILE_LAYER_WEIGHT_GRADIENT | OCTILE_LAYER_KEEP_X : 0;
  std::vector<std::uint32_t> uses;
  for (const std::uint32_t gradients : {std::uint32_t{0}, dx, dw, dx | dw}) {
    if (gradients != 0 || has(passes, Pass::kFprop)) {
      const std::uint32_t forward = OCTILE_LAYER_WITHOUT_BACKWARD | OCTILE_LAYER_KEEP_W | gradients;
      uses.insert(uses.end(), {forward, forward | OCTILE_LAYER_COMPARE_W});
    }
    if (gradients == 0) continue;
    const std::uint32_t without_x = gradients & ~std::uint32_t{OCTILE_LAYER_KEEP_X};
    for (const std::uint32_t keeps_w : {0U, std::uint32_t{OCTILE_LAYER_KEEP_W}})
      uses.insert(uses.end(), {OCTILE_LAYER_WITHOUT_FORWARD | keeps_w | gradients,
                               OCTILE_LAYER_WITHOUT_FORWARD | keeps_w | without_x});
  }
  return uses;
}

std::string name_of(const Layer& layer, const layers::Step& step) {
  constexpr std::array kTensors{"activation", "weight", "gradient"};
  switch (step.work) {
    case layers::Work::kQuantize:
      return fmt::format("{}, {}", layer.name, kTensors.at(static_cast<std::size_t>(step.role)));
    case layers::Work::kMultiply:
      return fmt::format("{}, {}", layer.name, octile::name_of(step.pass));
    case layers::Work::kUpdateScales:
      break;
  }
  return "update of scales";
}

std::vector<TokenRange> rows_of(const Layer& layer, const layers::Step& step,
                                const std::vector<TokenRange>& tokens) {
  switch (step.rows) {
    case layers::Step::Rows::kTokens:
      return tokens;
    case layers::Step::Rows::kWeight:
      return {{layer.n, layer.n}};
    case layers::Step::Rows::kOne:
      break;
  }
  return {{1, 1}};
}

// The recipe that scales by tensors' own maxima, which a layer of delayed scaling begins with.
const Recipe* without_delay(const Recipe& recipe) {
  const bool has_pow2 = recipe.activation.scale == ScaleFormat::kF32Pow2;
  return find_recipe(has_pow2 ? "tensorwise" : "tensorwise:f32");
}

void add_torch_layer(const Layer& layer, const LayerWorks& all) {
  std::vector<const Recipe*> recipes{&all.recipe};
  if (all.recipe.delayed) recipes.insert(recipes.begin(), without_delay(all.recipe));
  std::vector<Work> works;
  for (const Recipe* recipe : recipes) {
    // dW goes to an fp32 main_grad, or to weight.grad.
    for (const bool main_grad : {true, false}) {
      const layers::Description description{
          .recipe = recipe,
          .n = layer.n,
          .k = layer.k,
          .experts = layer.experts,
          .weight_gradient_dtype = main_grad ? DType::kFP32 : DType::kBF16,
          .accumulate = main_grad};
      for (const std::uint32_t uses : torch_uses(all.passes)) {
        for (const layers::Step& step : layers::steps_of(description, uses)) {
          if (step.work == layers::Work::kMultiply && !has(all.passes, step.pass)) continue;
          works.push_back({name_of(layer, step), layers::problem_of(description, step),
                           rows_of(layer, step, all.tokens)});
        }
      }
    }
  }
  std::ranges::move(distinct(std::move(works)), std::back_inserter(all.works));
}

void add_layer(const Layer& layer, const LayerWorks& all, LayerUser user) {
  switch (user) {
    case LayerUser::kLibrary:
      return add_library_layer(layer, all);
    case LayerUser::kTorch:
      return add_torch_layer(layer, all);
  }
}

// An error about a shape of a file names the file and the layer.
Status check_works(const ModelFile& model, const std::vector<Work>& works) {
  for (const Work& work : works) {
    if (const Status ok = check_supported(work.problem); !ok) {
      return fail(ok.error().code,
                  fmt::format("{}: '{}': {}", model.origin, work.name, ok.error().message));
    }
  }
  return {};
}

std::vector<std::string_view> views_of(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

}  // namespace

std::vector<std::string> recipe_name_list() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
  return names;
}

Result<const Recipe*> recipe_of_option(const std::string& name) {
  if (const Recipe* recipe = find_recipe(name)) return recipe;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--recipe is '{}'{}; allowed: {}", name,
                          did_you_mean(name, views_of(recipe_name_list())), recipe_names()));
}

Result<LayerUser> layer_user_of_option(const std::string& name) {
  if (name.empty()) return LayerUser::kLibrary;
  if (name == "torch") return LayerUser::kTorch;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--for is '{}'; allowed: torch, or no --for", name));
}

std::vector<std::string> shipped_model_names() {
  std::vector<std::string> names;
  for (const ShippedModel& model : shipped_models()) names.emplace_back(model.name);
  return names;
}

std::string model_names() { return fmt::format("{}", fmt::join(shipped_model_names(), ", ")); }

std::vector<std::string> shipped_models_with_experts() {
  std::vector<std::string> names;
  for (const ShippedModel& shipped : shipped_models()) {
    const auto file = parse_model_file(shipped.json, shipped.name);
    if (file && file->experts) names.emplace_back(shipped.name);
  }
  return names;
}

Result<ModelFile> find_model(const std::string& model) {
  for (const ShippedModel& shipped : shipped_models()) {
    if (model == shipped.name) return parse_model_file(shipped.json, shipped.name);
  }
  std::error_code ignored;
  if (model != "-" && !std::filesystem::exists(model, ignored)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--model is '{}'{}; allowed: a file that exists, or one of {}", model,
                            did_you_mean(model, views_of(shipped_model_names())), model_names()));
  }
  if (std::filesystem::is_directory(model, ignored)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--model is '{}', a folder; allowed: a file, or one of {}", model,
                            model_names()));
  }
  return read_model_file(model);
}

std::vector<std::int64_t> counts_for(const Problem& problem,
                                     const std::vector<std::int64_t>& counts) {
  return token_axis(problem).is_dynamic() ? counts : std::vector<std::int64_t>();
}

Status check_counts(const Problem& problem, const std::vector<std::int64_t>& counts) {
  const TokenAxis axis = token_axis(problem);
  if (counts.empty() || axis.is_dynamic()) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--tokens is given, but the problem states {0}={1}; allowed only if {0} "
                          "is '?' or '_'",
                          axis.dimension, axis.tokens));
}

Result<std::vector<Work>> work_of_problem(const Problem& problem,
                                          const std::vector<std::int64_t>& counts) {
  if (Status ok = check_counts(problem, counts); !ok) return tl::unexpected<Error>(ok.error());
  auto ranges = ranges_of(counts);
  if (!ranges) return tl::unexpected<Error>(ranges.error());
  if (ranges->empty()) {
    const TokenAxis axis = token_axis(problem);
    ranges->push_back(axis.is_dynamic() ? TokenRange{1, kMostTokens}
                                        : TokenRange{axis.tokens, axis.tokens});
  }
  return std::vector<Work>{{"", problem, std::move(*ranges)}};
}

Result<std::vector<Request>> gemms_of_shape(const std::string& mxnxk,
                                            const std::string& recipe_name,
                                            const std::vector<Pass>& passes,
                                            const std::vector<std::int64_t>& counts) {
  const auto fprop = parse_gemm_shape(mxnxk, recipe_name);
  if (!fprop) return tl::unexpected<Error>(fprop.error());
  if (Status ok = check_counts(*fprop, counts); !ok) return tl::unexpected<Error>(ok.error());
  const auto [m, n, k] = std::array{fprop->m, fprop->n, fprop->k};
  std::vector<Request> requests;
  for (const Pass pass : passes) {
    const bool opens = pass == Pass::kWgrad && m != kDynamic;
    requests.push_back({gemm_problem(*find_recipe(recipe_name), pass, opens ? kDynamic : m, n, k),
                        opens ? std::vector<std::int64_t>{m} : counts});
  }
  return requests;
}

Result<std::vector<Work>> work_of_layers(const ModelFile& model, const std::string& recipe_name,
                                         const std::vector<Pass>& passes,
                                         const std::vector<std::int64_t>& counts, LayerUser user) {
  const auto recipe = recipe_of_option(recipe_name);
  if (!recipe) return tl::unexpected<Error>(recipe.error());
  const auto ranges = ranges_of(counts.empty() ? model.tokens : counts);
  if (!ranges) return tl::unexpected<Error>(ranges.error());
  std::vector<Work> works;
  const LayerWorks all{**recipe, passes, *ranges, works};
  for (const auto& [name, n, k, split] : model.gemms) add_layer({name, n, k}, all, user);
  if (Status ok = check_works(model, works); !ok) return tl::unexpected<Error>(ok.error());
  return works;
}

Result<ExpertShare> share_of_experts(const ModelFile& model, const std::string& name,
                                     std::int64_t ranks) {
  if (!model.experts) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--model is '{}', whose file has no experts; allowed: a file that has, "
                            "or one of {}",
                            name, fmt::join(shipped_models_with_experts(), ", ")));
  }
  const ModelExperts& experts = *model.experts;
  if (ranks < 1 || experts.count % ranks != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--ep is {}; allowed are divisors of the model's {} experts", ranks,
                            experts.count));
  }
  return ExpertShare{experts.count / ranks, experts.per_token, experts.gate_up, experts.down};
}

Result<std::int64_t> rows_of(const ExpertShare& share, std::int64_t tokens) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / share.rows_per_token;
  if (tokens >= 1 && tokens <= most) return tokens * share.rows_per_token;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--tokens is {}; allowed are 1 to {}: a rank's experts receive {} rows "
                          "for each, below 2^31 in all",
                          tokens, most, share.rows_per_token));
}

Result<std::vector<Work>> work_of_experts(const ModelFile& model, const ExpertShare& share,
                                          const std::string& recipe_name,
                                          const std::vector<Pass>& passes,
                                          const std::vector<std::int64_t>& counts, LayerUser user) {
  const auto recipe = recipe_of_option(recipe_name);
  if (!recipe) return tl::unexpected<Error>(recipe.error());
  auto ranges = ranges_of(counts.empty() ? model.tokens : counts);
  if (!ranges) return tl::unexpected<Error>(ranges.error());
  for (TokenRange& range : *ranges) {
    const auto rows = rows_of(share, range.lo);
    if (!rows) return tl::unexpected<Error>(rows.error());
    range = {*rows, *rows};
  }
  std::vector<Work> works;
  const LayerWorks all{**recipe, passes, *ranges, works};
  for (const auto& [name, gemm] :
       {std::pair("experts' gate_up", share.gate_up), std::pair("experts' down", share.down)}) {
    add_layer({name, gemm.n, gemm.k, share.experts}, all, user);
  }
  if (Status ok = check_works(model, works); !ok) return tl::unexpected<Error>(ok.error());
  return works;
}

std::vector<Work> distinct(std::vector<Work> works) {
  std::vector<Work> once;
  std::unordered_map<std::string, std::size_t> places;  // of problems, by their texts
  for (Work& work : works) {
    const auto [place, is_new] = places.try_emplace(to_text(work.problem), once.size());
    if (is_new) {
      once.push_back(std::move(work));
      continue;
    }
    Work& same = once[place->second];
    for (const TokenRange& range : work.tokens) {
      if (std::ranges::find(same.tokens, range) == same.tokens.end()) {
        same.tokens.push_back(range);
      }
    }
  }
  return once;
}

}  // namespace octile::tools
