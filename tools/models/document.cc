#include "tools/models/document.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <vector>

#include "cache/json_parse.h"
#include "tools/common/input_file.h"
#include "tools/models/json_syntax.h"

namespace octile::tools {
namespace {

using Json = nlohmann::json;

}  // namespace

Result<Json> parse_document(std::string_view text, const std::string& origin) {
  auto root = cache::parse_json<Json>(text, kMostDocumentDepth);
  if (root) return std::move(*root);
  using Kind = cache::JsonMistake::Kind;
  const cache::JsonMistake& mistake = root.error();
  const std::string sentence =
      mistake.kind == Kind::kTooDeep
          ? fmt::format("nested more than {} deep; allowed is less", kMostDocumentDepth)
      : mistake.kind == Kind::kTwice
          ? fmt::format("the key '{}' stands twice in one object; allowed: once",
                        mistake.key.substr(0, 60))
      : mistake.kind == Kind::kNumber ? std::string("not JSON: a number is too large")
                                      : json_syntax_error(text, mistake.byte);
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin, sentence));
}

Result<std::string> read_text(const std::string& path, std::string& name, std::size_t most_bytes) {
  const auto file = InputFile::open(path);
  if (!file) return tl::unexpected<Error>(file.error());
  name = file->name();
  return file->read_all(most_bytes).map([](const std::vector<std::uint8_t>& bytes) {
    return std::string(bytes.begin(), bytes.end());
  });
}

Status check_regular(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || status.type() == std::filesystem::file_type::not_found) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} cannot be read: {}", path,
                            error ? error.message() : "No such file or directory"));
  }
  if (std::filesystem::is_regular_file(status)) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}; allowed: a regular file", path,
                          std::filesystem::is_directory(status) ? "a folder"
                          : std::filesystem::is_fifo(status)    ? "a FIFO"
                                                                : "a device or a socket"));
}

Result<Json> read_document(const std::string& path, std::size_t most_bytes) {
  if (Status ok = check_regular(path); !ok) return tl::unexpected<Error>(ok.error());
  std::string name;
  return read_text(path, name, most_bytes).and_then([&](const std::string& text) {
    return parse_document(text, name);
  });
}

std::string excerpt(const Json& value) {
  constexpr std::size_t kMost = 60;
  // The printer writes null for a number that JSON has no word for.
  const bool is_word = value.is_number_float() && !std::isfinite(value.get<double>());
  std::string text = is_word && std::isnan(value.get<double>()) ? "NaN"
                     : is_word ? (value.get<double>() < 0 ? "-Infinity" : "Infinity")
                               : value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

}  // namespace octile::tools
