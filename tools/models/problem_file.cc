#include "tools/models/problem_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "tools/common/input_file.h"

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

// The lines of a file, one at a time.
class Lines {
 public:
  explicit Lines(InputFile file) : file_(std::move(file)) {}

  // Returns the next line without its newline, or nothing at the end. Errors: kInvalidArgument for
  // a line that is too long, and those of InputFile.
  Result<std::optional<std::string>> next() {
    for (;;) {
      const std::size_t newline = text_.find('\n', at_);
      const std::size_t bytes = std::min(newline, text_.size()) - at_;
      if (bytes > kMostLineBytes) return too_long();
      if (newline != std::string::npos || ended_) {
        if (newline == std::string::npos && bytes == 0) return std::nullopt;
        ++number_;
        std::string line = text_.substr(at_, bytes);
        at_ = std::min(at_ + bytes + 1, text_.size());
        return line;
      }
      if (Status ok = read_more(); !ok) return tl::unexpected<Error>(ok.error());
    }
  }

  int number() const { return number_; }  // of the last line, from 1 on

 private:
  Status read_more() {
    text_.erase(0, at_);
    at_ = 0;
    const auto n = file_.read_next(chunk_);
    if (!n) return tl::unexpected<Error>(n.error());
    ended_ = *n == 0;
    text_.append(chunk_.begin(), chunk_.begin() + static_cast<std::ptrdiff_t>(*n));
    return {};
  }
  tl::unexpected<Error> too_long() const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}:{}: more than {} bytes; allowed: at most {} a line", file_.name(),
                            number_ + 1, kMostLineBytes, kMostLineBytes));
  }

  InputFile file_;
  std::array<std::uint8_t, std::size_t{16} << 10> chunk_{};
  std::string text_;    // what was read and not all returned
  std::size_t at_ = 0;  // where the next line begins in it
  int number_ = 0;
  bool ended_ = false;
};

Status use_line(const std::string& line, const std::string& recipe, const std::vector<Pass>& passes,
                const ProblemUse& use) {
  const bool is_shape = line.find('=') == std::string::npos;
  return parse_line(line, recipe, passes).and_then([&](const auto& requests) -> Status {
    for (const Request& request : requests) {
      if (Status ok = use(request, is_shape); !ok) return ok;
    }
    return {};
  });
}

}  // namespace

Status for_each_problem(const std::string& path, const std::string& recipe,
                        const std::vector<Pass>& passes, const ProblemUse& use) {
  auto file = InputFile::open(path);
  if (!file) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--problem-file is '{}': {}", path, file.error().message));
  }
  const std::string name = file->name();
  Lines lines(std::move(*file));
  int problems = 0;
  for (;;) {
    auto read = lines.next();
    if (!read) return tl::unexpected<Error>(read.error());
    std::optional<std::string>& text = *read;
    if (!text) break;
    const std::string line = trimmed(std::move(*text));
    if (line.empty()) continue;
    ++problems;
    if (const Status ok = use_line(line, recipe, passes, use); !ok) {
      return fail(ok.error().code,
                  fmt::format("{}:{}: {}", name, lines.number(), ok.error().message));
    }
  }
  if (problems > 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: it names no problem; allowed: one a line", name));
}

}  // namespace octile::tools
