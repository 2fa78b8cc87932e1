#include "tools/common/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "generator/recipe.h"
#include "generator/support_matrix.h"
#include "runtime/engine/arguments.h"
#include "tools/common/workload.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kMostTokens = 16384;  // above it frameworks split a batch

using Questions = Result<std::vector<tuner::Question>>;

Result<GemmProblem> parse_line(const std::string& line, const std::string& recipe) {
  if (line.find('=') == std::string::npos) return parse_gemm_shape(line, recipe);
  const auto problem = parse_problem(line);
  if (!problem) return tl::unexpected<Error>(problem.error());
  if (const auto* gemm = std::get_if<GemmProblem>(&*problem)) return *gemm;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is no product; allowed: a gemm", line));
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

Questions questions_of(const GemmProblem& problem, const std::vector<std::int64_t>& counts) {
  if (Status ok = check_supported(Problem(problem)); !ok) return tl::unexpected<Error>(ok.error());
  if (problem.m != kDynamic && !counts.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--tokens is given, but the problem states {}; allowed with ? only",
                            problem.m));
  }
  std::vector<std::int64_t> asked = counts.empty() ? bucket_counts() : counts;
  if (problem.m != kDynamic) asked = {problem.m};
  std::vector<tuner::Question> questions;
  for (const std::int64_t count : asked) {
    if (count < 1 || count > kMaxExtent) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a token count is {}; allowed: 1 to {}", count, kMaxExtent));
    }
    questions.push_back({problem, count});
    questions.back().problem.m = kDynamic;
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
    const auto some = problem.and_then([&](const GemmProblem& p) {
      return questions_of(p, p.m == kDynamic ? counts : std::vector<std::int64_t>());
    });
    if (!some) {
      return fail(some.error().code,
                  fmt::format("{}:{}: {}", origin, number, some.error().message));
    }
    questions.insert(questions.end(), some->begin(), some->end());
  }
  if (!questions.empty()) return questions;
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: it names no product", origin));
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
