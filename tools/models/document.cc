#include "tools/models/document.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "cache/json.h"
#include "tools/common/input_file.h"
#include "tools/models/json_syntax.h"

namespace octile::tools {
namespace {

Result<std::string> text_of(const InputFile& file, std::size_t most_bytes) {
  return file.read_all(most_bytes).map([](const std::vector<std::uint8_t>& bytes) {
    return std::string(bytes.begin(), bytes.end());
  });
}

}  // namespace

Result<Json> parse_document(std::string_view text, const std::string& origin) {
  auto root = parse_json(text, kMostDocumentDepth);
  if (root) {
    root->sort_members();  // a document that says the same is read, and quoted, in the same way
    return std::move(*root);
  }
  using Kind = JsonMistake::Kind;
  const JsonMistake& mistake = root.error();
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
  return text_of(*file, most_bytes);
}

Status check_regular(const std::string& path) {
  return InputFile::open_regular(path).map([](const InputFile&) {});
}

Result<std::string> read_regular(const std::string& path, std::size_t most_bytes) {
  return InputFile::open_regular(path).and_then(
      [&](const InputFile& file) { return text_of(file, most_bytes); });
}

Result<Json> read_document(const std::string& path, std::size_t most_bytes) {
  return read_regular(path, most_bytes).and_then([&](const std::string& text) {
    return parse_document(text, path);
  });
}

std::string excerpt(const Json& value) {
  constexpr std::size_t kMost = 60;
  // The printer writes null for a number that JSON has no word for.
  const double number = value.number().value_or(0);
  std::string text = std::isnan(number)       ? "NaN"
                     : !std::isfinite(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                              : value.dump_ascii();
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

}  // namespace octile::tools
