#include "tools/models/workload.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>

#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"
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

QuantizeProblem quantize_problem(std::int64_t rows, std::int64_t cols, const TensorType& type) {
  QuantizeProblem problem;
  problem.rows = rows;
  problem.cols = cols;
  problem.q = type;
  return problem;
}

}  // namespace

std::string model_names() {
  std::string names;
  for (const ShippedModel& model : shipped_models()) {
    names.append(names.empty() ? "" : ", ").append(model.name);
  }
  return names;
}

Result<ModelFile> find_model(const std::string& model) {
  for (const ShippedModel& shipped : shipped_models()) {
    if (model == shipped.name) return parse_model_file(shipped.json, shipped.name);
  }
  std::error_code ignored;
  if (!std::filesystem::exists(model, ignored)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--model is '{}'; allowed: a file that exists, or one of {}", model,
                            model_names()));
  }
  return read_model_file(model);
}

std::vector<std::int64_t> counts_for(const Problem& problem,
                                     const std::vector<std::int64_t>& counts) {
  return token_axis(problem).is_dynamic() ? counts : std::vector<std::int64_t>();
}

Status check_counts(const Problem& problem, const std::vector<std::int64_t>& counts) {
  if (counts.empty() || token_axis(problem).is_dynamic()) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--tokens is given, but the problem states {}; allowed with ? only",
                          token_axis(problem).tokens));
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

Result<std::vector<Work>> work_of_layers(const ModelFile& model, const std::string& recipe_name,
                                         const std::vector<std::int64_t>& counts) {
  const Recipe* recipe = find_recipe(recipe_name);
  if (recipe == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--recipe is '{}'; allowed: {}", recipe_name, recipe_names()));
  }
  auto ranges = ranges_of(counts.empty() ? model.tokens : counts);
  if (!ranges) return tl::unexpected<Error>(ranges.error());
  std::vector<Work> works;
  for (const ModelGemm& gemm : model.gemms) {
    works.push_back(
        {gemm.name, gemm_problem(*recipe, Pass::kFprop, kDynamic, gemm.n, gemm.k), *ranges});
    works.push_back({gemm.name + ", activation",
                     quantize_problem(kDynamic, gemm.k, recipe->activation), *ranges});
    works.push_back({gemm.name + ", weight",
                     quantize_problem(gemm.n, gemm.k, recipe->weight),
                     {{gemm.n, gemm.n}}});
  }
  return works;
}

}  // namespace octile::tools
