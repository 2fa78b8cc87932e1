#include "tools/models/workload.h"

#include <fmt/format.h>

#include <string>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"
#include "tools/models/shipped_models.h"

namespace octile::tools {
namespace {

// Above it frameworks split a batch; the largest bucket's kernel serves what is beyond.
constexpr std::int64_t kMostTokens = 16384;

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

std::int64_t tokens_of(const Problem& problem) {
  if (const auto* gemm = std::get_if<GemmProblem>(&problem)) return gemm->m;
  return std::get<QuantizeProblem>(problem).rows;
}

std::vector<std::int64_t> counts_for(const Problem& problem,
                                     const std::vector<std::int64_t>& counts) {
  return tokens_of(problem) == kDynamic ? counts : std::vector<std::int64_t>();
}

Status check_counts(const Problem& problem, const std::vector<std::int64_t>& counts) {
  if (counts.empty() || tokens_of(problem) == kDynamic) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--tokens is given, but the problem states {}; allowed with ? only",
                          tokens_of(problem)));
}

Result<std::vector<Work>> work_of_problem(const Result<Problem>& problem,
                                          const std::vector<std::int64_t>& counts) {
  if (!problem) return tl::unexpected<Error>(problem.error());
  if (Status ok = check_counts(*problem, counts); !ok) return tl::unexpected<Error>(ok.error());
  auto ranges = ranges_of(counts);
  if (!ranges) return tl::unexpected<Error>(ranges.error());
  if (ranges->empty()) {
    const std::int64_t stated = tokens_of(*problem);
    ranges->push_back(stated == kDynamic ? TokenRange{1, kMostTokens} : TokenRange{stated, stated});
  }
  return std::vector<Work>{{"", *problem, std::move(*ranges)}};
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

std::vector<Work> work_of_quantisers(const std::vector<std::string>& names) {
  constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {
      {16384, 7168}, {32768, 4096}, {4096, 7168}, {128, 7168}};
  constexpr const char* kEverywhere[] = {"x=bf16 q=e4m3:1x128 out=row",
                                         "x=bf16 q=e4m3:1x128 out=col",
                                         "x=bf16 q=e4m3:1x128 out=both",
                                         "x=bf16 q=e4m3:128x128 out=row",
                                         "x=bf16 q=e4m3:128x128 out=col",
                                         "x=bf16 q=e4m3:128x128 out=both",
                                         "x=bf16 q=e4m3:1x32 out=row",
                                         "x=bf16 q=e4m3:1x32 out=both",
                                         "x=bf16 q=e4m3:32x32 out=row",
                                         "x=bf16 q=e4m3:32x32 out=both",
                                         "x=bf16 q=e4m3:row out=row",
                                         "x=bf16 q=e4m3:row out=both",
                                         "x=bf16 q=e4m3:tensor out=row",
                                         "x=bf16 q=e4m3:tensor out=both",
                                         "x=bf16 q=e4m3:tensor out=row policy=delayed",
                                         "x=bf16 q=e4m3:tensor out=both policy=delayed"};
  constexpr const char* kOnce[] = {
      "x=bf16 q=e4m3:1x32 out=col",          "x=bf16 q=e4m3:1x128:ue8m0x4 out=row",
      "x=bf16 q=e4m3:1x128:ue8m0x4 out=both", "x=bf16 q=e5m2:1x128:bf16 out=row",
      "x=fp16 q=e4m3:1x128 out=both",        "x=fp32 q=e4m3:1x128 out=row",
      "x=fp32 q=e4m3:1x128 out=both",        "x=fp32 q=e4m3:128x128 out=row",
      "x=fp32 q=e4m3:128x128 out=both"};
  constexpr const char* kFused[] = {
      "x=bf16 q=e4m3:1x128 out=row src=silu_mul",  "x=bf16 q=e4m3:1x128 out=both src=silu_mul",
      "x=bf16 q=e4m3:1x128 out=row src=dsilu_mul", "x=bf16 q=e4m3:1x128 out=both src=dsilu_mul",
      "x=bf16 q=e4m3:1x128 out=row src=gelu_tanh", "x=bf16 q=e4m3:1x128 out=row src=rmsnorm",
      "x=bf16 q=e4m3:1x32 out=row src=rmsnorm",    "x=bf16 q=e4m3:row out=row src=rmsnorm",
      "x=bf16 q=e4m3:1x128 out=both dbias=1"};
  // 32 groups, of unlike sizes; masked ones of up to `rows` rows, half of them there.
  constexpr const char* kPacked[] = {"x=bf16 q=e4m3:1x128 out=row group=contiguous",
                                     "x=bf16 q=e4m3:1x128 out=col group=contiguous",
                                     "x=bf16 q=e4m3:1x128 out=both group=contiguous",
                                     "x=bf16 q=e4m3:1x32 out=both group=contiguous",
                                     "x=bf16 q=e4m3:tensor out=row group=contiguous",
                                     "x=bf16 q=e4m3:tensor out=both policy=delayed group=contiguous"};
  constexpr const char* kMasked[] = {"x=bf16 q=e4m3:1x128 out=row group=masked",
                                     "x=bf16 q=e4m3:row out=row group=masked"};
  constexpr const char* kAgain[] = {
      "x=e4m3:1x128 q=e4m3:1x128 out=col", "x=e4m3:1x128:pow2 q=e4m3:1x128:pow2 out=col",
      "x=e4m3:1x32 q=e4m3:1x32 out=col", "x=e4m3:1x128 q=e4m3:1x128 out=both"};
  constexpr const char* kWidened[] = {"x=e4m3:1x128 q=bf16 out=row", "x=e4m3:1x128 q=fp32 out=row",
                                      "x=e4m3:128x128 q=bf16 out=row",
                                      "x=e4m3:1x32 q=bf16 out=row"};
  constexpr const char* kTurned = "x=e4m3:128x128 q=e4m3:128x128 out=col";
  std::vector<Work> works;
  const auto add = [&](std::int64_t rows, std::int64_t cols, const char* numerics,
                       const char* operation = "quantize") {
    const std::string text = fmt::format("{} rows={} cols={} {}", operation, rows, cols, numerics);
    const auto named = [&](const std::string& name) {
      return text.find(name) != std::string::npos;
    };
    if (!names.empty() && std::none_of(names.begin(), names.end(), named)) return;
    works.push_back({"", parse_problem(text).value(), {{rows, rows}}});
  };
  for (const auto& [rows, cols] : kShapes) {
    for (const char* numerics : kEverywhere) add(rows, cols, numerics);
  }
  for (const auto& [rows, cols] : {kShapes[0], kShapes[1], kShapes[2]}) {
    for (const char* numerics : kFused) add(rows, cols, numerics);
  }
  for (const char* numerics : kOnce) add(kShapes[0].first, kShapes[0].second, numerics);
  for (const std::int64_t rows : {16384, 4096}) {
    for (const char* numerics : kPacked) add(rows, 7168, numerics);
  }
  for (const char* numerics : kMasked) add(1024, 7168, numerics);
  for (const auto& [rows, cols] : {kShapes[0], kShapes[2], kShapes[3]}) {
    for (const char* numerics : kAgain) add(rows, cols, numerics);
    for (const char* numerics : kWidened) add(rows, cols, numerics, "dequantize");
    add(rows, cols, kTurned, "transpose");
  }
  return works;
}

}  // namespace octile::tools
