#include "tools/models/problem_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "generator/core/recipe.h"
#include "generator/gemm/passes.h"

namespace octile::tools {
namespace {

std::string trimmed(std::string line) {
  line.erase(std::min(line.find('#'), line.size()));
  const std::size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

Result<Problem> parse_line(const std::string& line, const std::string& recipe) {
  if (line.find('=') != std::string::npos) return parse_problem(line);
  return parse_gemm_shape(line, recipe).map([](const GemmProblem& p) { return Problem(p); });
}

}  // namespace

Status for_each_problem(const std::string& path, const std::string& recipe,
                        const std::function<Status(const Problem&)>& use) {
  std::ifstream file(path, std::ios::binary);
  int problems = 0;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = trimmed(line);
    if (line.empty()) continue;
    ++problems;
    if (const Status ok = parse_line(line, recipe).and_then(use); !ok) {
      return fail(ok.error().code, fmt::format("{}:{}: {}", path, number, ok.error().message));
    }
  }
  if (!file.eof()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--problem-file is '{}', which cannot be read; allowed: a file of one "
                            "problem a line",
                            path));
  }
  if (problems > 0) return {};
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: it names no problem", path));
}

}  // namespace octile::tools
