#include "tools/common/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "generator/recipe.h"
#include "generator/support_matrix.h"
#include "runtime/engine/arguments.h"
#include "runtime/measure/quantize_operands.h"
#include "tools/common/workload.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kMostTokens = 16384;  // above it frameworks split a batch

using Questions = Result<std::vector<tuner::Question>>;

Result<Problem> parse_line(const std::string& line, const std::string& recipe) {
  if (line.find('=') != std::string::npos) return parse_problem(line);
  return parse_gemm_shape(line, recipe).map([](const GemmProblem& p) { return Problem(p); });
}

// Where the problem has its token count.
std::int64_t& count_of(Problem& problem) {
  if (auto* gemm = std::get_if<GemmProblem>(&problem)) return gemm->m;
  return std::get<QuantizeProblem>(problem).rows;
}
std::int64_t stated_count(Problem problem) { return count_of(problem); }

Status check_searchable(const Problem& problem) {
  if (Status ok = check_supported(problem); !ok) return ok;
  const auto* quantize = std::get_if<QuantizeProblem>(&problem);
  return quantize == nullptr ? Status{} : check_operands(*quantize);
}

std::string trimmed(std::string line) {
  line.erase(std::min(line.find('#'), line.size()));
  const std::size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

std::vector<std::int64_t> bucket_counts() {
  std::vector<std::int64_t> counts;
  for (std::int64_t count = 1; count <= kMostTokens; count *= 2) counts.push_back(count);
  return counts;
}

tuner::Question question_at(Problem problem, std::int64_t count) {
  count_of(problem) = kDynamic;
  return {std::move(problem), count};
}

Questions questions_of(const Problem& problem, const std::vector<std::int64_t>& counts) {
  if (Status ok = check_searchable(problem); !ok) return tl::unexpected<Error>(ok.error());
  const std::int64_t stated = stated_count(problem);
  if (stated != kDynamic && !counts.empty()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--tokens is given, but the problem states {}; allowed with ? only", stated));
  }
  std::vector<std::int64_t> asked = counts.empty() ? bucket_counts() : counts;
  if (stated != kDynamic) asked = {stated};
  std::vector<tuner::Question> questions;
  for (const std::int64_t count : asked) {
    if (count < 1 || count > kMaxExtent) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a token count is {}; allowed: 1 to {}", count, kMaxExtent));
    }
    questions.push_back(question_at(problem, count));
  }
  return questions;
}

Questions questions_of_model(const std::string& model, const std::string& recipe_name,
                             const std::vector<std::int64_t>& counts) {
  const auto file = find_model(model);
  if (!file) return tl::unexpected<Error>(file.error());
  const Recipe* recipe = find_recipe(recipe_name);
  if (recipe == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--recipe is '{}'; allowed: {}", recipe_name, recipe_names()));
  }
  std::vector<tuner::Question> questions;
  for (const ModelGemm& gemm : file->gemms) {
    const auto some =
        questions_of(gemm_problem(*recipe, Pass::kFprop, kDynamic, gemm.n, gemm.k), counts);
    if (!some) return some;
    questions.insert(questions.end(), some->begin(), some->end());
  }
  return questions;
}

Questions parse_questions(std::string_view text, const std::string& origin,
                          const std::string& recipe, const std::vector<std::int64_t>& counts) {
  std::vector<tuner::Question> questions;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = trimmed(line);
    if (line.empty()) continue;
    const auto problem = parse_line(line, recipe);
    const auto some = problem.and_then([&](const Problem& p) {
      return questions_of(p, stated_count(p) == kDynamic ? counts : std::vector<std::int64_t>());
    });
    if (!some) {
      return fail(some.error().code,
                  fmt::format("{}:{}: {}", origin, number, some.error().message));
    }
    questions.insert(questions.end(), some->begin(), some->end());
  }
  if (!questions.empty()) return questions;
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: it names no problem", origin));
}

Questions read_questions(const std::string& path, const std::string& recipe,
                         const std::vector<std::int64_t>& counts) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--shapes is '{}'; allowed: a file that can be read and is not empty", path));
  }
  return parse_questions(text.str(), path, recipe, counts);
}

std::vector<tuner::Question> distinct(std::vector<tuner::Question> questions) {
  std::vector<tuner::Question> once;
  for (tuner::Question& question : questions)
    if (std::ranges::find(once, question) == once.end()) once.push_back(std::move(question));
  return once;
}

}  // namespace octile::tools
