#include "tools/models/document.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "tools/common/input_file.h"
#include "tools/models/json_syntax.h"

namespace octile::tools {
namespace {

using Json = nlohmann::json;

// Watches a parser: how deep it is, and which keys the open objects have.
class Watch {
 public:
  bool see(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    too_deep_ = too_deep_ || depth > kMostDocumentDepth;
    if (too_deep_ || !twice_.empty()) return false;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key && !open_.back().insert(parsed.get<std::string>()).second) {
      twice_ = parsed.get<std::string>();
    }
    return true;
  }
  bool too_deep() const { return too_deep_; }
  const std::string& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string twice_;
  bool too_deep_ = false;
};

Result<std::string> text_of(const InputFile& file) {
  return file.read_all(kMostDocumentBytes).map([](const std::vector<std::uint8_t>& bytes) {
    return std::string(bytes.begin(), bytes.end());
  });
}

}  // namespace

Result<Json> parse_document(std::string_view text, const std::string& origin) {
  const auto refuse = [&](const std::string& sentence) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin, sentence));
  };
  Watch watch;
  Json root;
  try {
    root = Json::parse(text, [&](int depth, Json::parse_event_t event, const Json& parsed) {
      return watch.see(depth, event, parsed);
    });
  } catch (const Json::parse_error& error) {
    return refuse(json_syntax_error(text, error.byte));
  } catch (const Json::exception&) {
    return refuse("not JSON: a number is too large");
  }
  if (watch.too_deep()) {
    return refuse(fmt::format("nested more than {} deep; allowed is less", kMostDocumentDepth));
  }
  if (!watch.twice().empty()) {
    return refuse(fmt::format("the key '{}' stands twice in one object; allowed: once",
                              watch.twice().substr(0, 60)));
  }
  return root;
}

Result<std::string> read_text(const std::string& path, std::string& name) {
  const auto file = InputFile::open(path);
  if (!file) return tl::unexpected<Error>(file.error());
  name = file->name();
  return text_of(*file);
}

Status check_regular(const std::string& path) {
  return InputFile::open_regular(path).map([](const InputFile&) {});
}

Result<std::string> read_regular(const std::string& path) {
  return InputFile::open_regular(path).and_then(text_of);
}

Result<Json> read_document(const std::string& path) {
  return read_regular(path).and_then(
      [&](const std::string& text) { return parse_document(text, path); });
}

std::string excerpt(const Json& value) {
  constexpr std::size_t kMost = 60;
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

}  // namespace octile::tools
