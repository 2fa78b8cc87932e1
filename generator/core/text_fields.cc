#include "generator/core/config_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace octile {

bool parse_int(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_extents(std::string_view text, const std::vector<int*>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t cut = i + 1 < values.size() ? text.find('x') : text.size();
    if (cut == std::string_view::npos || !parse_int(text.substr(0, cut), *values[i])) return false;
    text.remove_prefix(std::min(cut + 1, text.size()));
  }
  return text.empty();
}

Status parse_fields(std::string_view text, const SetField& set, std::string_view what,
                    std::string_view allowed) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view field = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (field.empty()) continue;
    const std::size_t equals = field.find('=');
    if (equals != std::string_view::npos && set(field.substr(0, equals), field.substr(equals + 1)))
      continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} field '{}' is not one of {}", what, field, allowed));
  }
  return {};
}

}  // namespace octile
