#include "tools/models/problem_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
namespace octile::tools {
namespace {

constexpr std::size_t kMostLineBytes = std::size_t{64} << 10;  // a canonical text has 100 bytes

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
  std::vector<char> buffer(kMostLineBytes + 1);  // with the terminator
  while (file.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()))) {
    const std::streamsize newline = file.eof() ? 0 : 1;
    std::string line(buffer.data(), static_cast<std::size_t>(file.gcount() - newline));
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
  if (static_cast<std::size_t>(file.gcount()) >= kMostLineBytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}:{}: more than {} bytes; allowed: at most {} a line", path,
                            number + 1, kMostLineBytes, kMostLineBytes));
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
