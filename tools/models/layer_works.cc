#include "tools/models/layer_works.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "generator/gemm/passes.h"
#include "runtime/layers/uses.h"

namespace octile::tools {
namespace {

// The operands that quantisers make, at the end of a work's name.
constexpr std::array kTensors{"activation", "weight", "gradient"};

bool contains(const std::vector<Pass>& passes, Pass pass) {
  return std::ranges::find(passes, pass) != passes.end();
}

// Returns the problem whose codes are read by their rows alone.
QuantizeProblem rowwise_problem(std::int64_t rows, std::int64_t cols, const TensorType& type) {
  QuantizeProblem problem;
  problem.rows = rows;
  problem.cols = cols;
  problem.q = type;
  problem.output = QuantizeOutput::kRowwise;
  return problem;
}

// Returns nothing if no pass reads the tensor. `by_row` and `by_col` read its rows and its columns.
std::optional<QuantizeProblem> quantize_problem(std::int64_t rows, std::int64_t cols,
                                                const TensorType& type, bool by_row, bool by_col) {
  if (!by_row && !by_col) return std::nullopt;
  QuantizeProblem problem = rowwise_problem(rows, cols, type);
  if (by_col) problem.output = by_row ? QuantizeOutput::kBoth : QuantizeOutput::kTransposed;
  return problem;
}

void add_library_layer(const Layer& layer, const LayerWorks& all) {
  const auto& [recipe, passes, tokens, works] = all;
  const auto [fprop, dgrad, wgrad] =
      std::array{contains(passes, Pass::kFprop), contains(passes, Pass::kDgrad),
                 contains(passes, Pass::kWgrad)};
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

// The uses of octile.torch's calls: forward passes with and without gradients, and
// backward passes with those of X, of W or of both. A pass makes the copies of W that it reads, one
// or both, or finds them made; a forward pass may compare W with the one that they were made from.
// A backward pass may quantise X again, but not by scales of earlier steps.
std::vector<std::uint32_t> torch_uses(const std::vector<Pass>& passes, bool delayed) {
  const std::uint32_t dx = contains(passes, Pass::kDgrad) ? OCTILE_LAYER_INPUT_GRADIENT : 0;
  const std::uint32_t dw =
      contains(passes, Pass::kWgrad) ? OCTILE_LAYER_WEIGHT_GRADIENT | OCTILE_LAYER_KEEP_X : 0;
  std::vector<std::uint32_t> uses;
  for (const std::uint32_t gradients : {std::uint32_t{0}, dx, dw, dx | dw}) {
    if (gradients != 0 || contains(passes, Pass::kFprop)) {
      const std::uint32_t forward = OCTILE_LAYER_WITHOUT_BACKWARD | OCTILE_LAYER_KEEP_W | gradients;
      uses.insert(uses.end(), {forward, forward | OCTILE_LAYER_COMPARE_W});
    }
    if (gradients == 0) continue;
    const std::uint32_t without_x = gradients & ~std::uint32_t{OCTILE_LAYER_KEEP_X};
    for (const std::uint32_t keeps_w : {0U, std::uint32_t{OCTILE_LAYER_KEEP_W}}) {
      uses.push_back(OCTILE_LAYER_WITHOUT_FORWARD | keeps_w | gradients);
      if (!delayed) uses.push_back(OCTILE_LAYER_WITHOUT_FORWARD | keeps_w | without_x);
    }
  }
  return uses;
}

std::string name_of(const Layer& layer, const layers::Step& step) {
  switch (step.work) {
    case layers::Work::kQuantize:
    case layers::Work::kTranspose:
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
      for (const std::uint32_t uses : torch_uses(all.passes, recipe->delayed)) {
        for (const layers::Step& step : layers::steps_of(description, uses)) {
          if (step.work == layers::Work::kMultiply && !contains(all.passes, step.pass)) continue;
          works.push_back({name_of(layer, step), layers::problem_of(description, step),
                           rows_of(layer, step, all.tokens)});
        }
      }
    }
  }
  std::ranges::move(distinct(std::move(works)), std::back_inserter(all.works));
}

// Products of codes have one kernel for all formats of scales. The plug-in of SGLang leaves other
// sizes to SGLang.
void add_engine_layer(const Layer& layer, const LayerWorks& all, LayerUser user) {
  constexpr std::int64_t kUnit = 16;
  const bool quantises = user == LayerUser::kSglang;
  if (quantises && layer.n % kUnit != 0) return;
  const Recipe& recipe = *find_recipe("blockwise:f32");
  all.works.push_back(
      {layer.name, gemm_problem(recipe, Pass::kFprop, kDynamic, layer.n, layer.k), all.tokens});
  if (!quantises) return;
  all.works.push_back({layer.name + ", activation",
                       rowwise_problem(kDynamic, layer.k, recipe.activation), all.tokens});
}

std::vector<TokenRange> times(const std::vector<TokenRange>& tokens, std::int64_t factor) {
  std::vector<TokenRange> all;
  for (const TokenRange& range : tokens) all.push_back({range.lo * factor, range.hi * factor});
  return all;
}

}  // namespace

void add_layer(const Layer& layer, const LayerWorks& all, LayerUser user) {
  switch (user) {
    case LayerUser::kLibrary:
      return add_library_layer(layer, all);
    case LayerUser::kTorch:
      return add_torch_layer(layer, all);
    case LayerUser::kVllm:
    case LayerUser::kSglang:
      return add_engine_layer(layer, all, user);
  }
}

bool add_masked(const Layer& layer, const LayerWorks& all) {
  GemmProblem gemm =
      gemm_problem(all.recipe, Pass::kFprop, kDynamic, layer.n, layer.k, layer.experts);
  gemm.grouping = Grouping::kMasked;
  auto activation = rowwise_problem(kDynamic, layer.k, all.recipe.activation);
  activation.grouping = Grouping::kMasked;
  if (!check_supported(gemm) || !check_supported(activation)) return false;
  all.works.push_back({layer.name, gemm, all.tokens});
  all.works.push_back({layer.name + ", activation", activation, all.tokens});
  all.works.push_back({layer.name + ", weight",
                       rowwise_problem(layer.n, layer.k, all.recipe.weight),
                       {{layer.n, layer.n}}});
  return true;
}

std::optional<Operand> operand_of(const Work& work) {
  constexpr std::array kOperands{Operand::kActivation, Operand::kWeight, Operand::kGradient};
  for (std::size_t i = 0; i < kOperands.size(); ++i) {
    if (work.name.ends_with(fmt::format(", {}", kTensors.at(i)))) return kOperands.at(i);
  }
  return std::nullopt;
}

bool add_batched(const Layer& layer, std::int64_t batch, const LayerWorks& all) {
  GemmProblem gemm = gemm_problem(all.recipe, Pass::kFprop, kDynamic, layer.n, layer.k);
  gemm.batch = batch;
  if (!check_supported(gemm)) return false;
  all.works.push_back({layer.name, gemm, all.tokens});
  all.works.push_back({layer.name + ", activation",
                       rowwise_problem(kDynamic, layer.k, all.recipe.activation),
                       times(all.tokens, batch)});
  const std::int64_t rows = batch * layer.n;
  all.works.push_back(
      {layer.name + ", weight", rowwise_problem(rows, layer.k, all.recipe.weight), {{rows, rows}}});
  return true;
}

}  // namespace octile::tools
