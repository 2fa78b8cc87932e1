#include "tools/models/problem_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
namespace octile::tools {
namespace {

std::string trimmed(std::string line) {
  line.erase(std::min(line.find('#'), line.size()));
  const std::size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

Result<std::vector<Request>> parse_line(const std::string& line, const std::string& recipe,
                                        const std::vector<Pass>& passes) {
  if (line.find('=') == std::string::npos) return gemms_of_shape(line, recipe, passes, {});
  return parse_problem(line).map([](const Problem& p) { return std::vector<Request>{{p, {}}}; });
}

Status use_all(const std::vector<Request>& requests,
               const std::function<Status(const Request&)>& use) {
  for (const Request& request : requests) {
    if (Status ok = use(request); !ok) return ok;
  }
  return {};
}

}  // namespace

Status for_each_problem(const std::string& path, const std::string& recipe,
                        const std::vector<Pass>& passes,
                        const std::function<Status(const Request&)>& use) {
  std::ifstream file(path, std::ios::binary);
  int problems = 0;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    line = trimmed(line);
    if (line.empty()) continue;
    ++problems;
    const Status ok = parse_line(line, recipe, passes).and_then([&](const auto& requests) {
      return use_all(requests, use);
    });
    if (!ok) {
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
