#include "cache/field_reader.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

namespace octile::cache {
namespace {

using Json = FieldReader::Json;

template <typename Int>
std::optional<Int> as_integer(const Json& value) {
  using Limits = std::numeric_limits<Int>;
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(Limits::max())) {
    return std::nullopt;
  }
  const auto wide = value.get<std::int64_t>();
  if (wide < Limits::min() || wide > Limits::max()) return std::nullopt;
  return static_cast<Int>(wide);
}

// Returns true if arrays and objects nest deeper than the limit. Brackets within strings do not
// count.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > kMaxJsonDepth) return true;
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

}  // namespace

tl::expected<Json, std::string> parse_object(std::string_view text, std::string_view where) {
  if (too_deep(text)) {
    return tl::unexpected(fmt::format("{}: values nest more than {} deep", where, kMaxJsonDepth));
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return tl::unexpected(fmt::format("{}: not a JSON object", where));
  return json;
}

void FieldReader::read(const char* name, std::string& out) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_string()) return complain(name, "a string");
  out = value->get<std::string>();
}

void FieldReader::read(const char* name, int& out) {
  const Json* value = find(name);
  const auto number = value == nullptr ? std::nullopt : as_integer<int>(*value);
  if (!number) return complain(name, "a 32-bit integer");
  out = *number;
}

void FieldReader::read(const char* name, std::int64_t& out) {
  const Json* value = find(name);
  const auto number = value == nullptr ? std::nullopt : as_integer<std::int64_t>(*value);
  if (!number) return complain(name, "a 64-bit integer");
  out = *number;
}

void FieldReader::read(const char* name, double& out) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_number()) return complain(name, "a number");
  out = value->get<double>();
}

void FieldReader::read(const char* name, std::vector<int>& out) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_array()) return complain(name, "an array of integers");
  for (const Json& item : *value) {
    const auto number = as_integer<int>(item);
    if (!number) return complain(name, "an array of integers");
    out.push_back(*number);
  }
}

const Json* FieldReader::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() ? nullptr : &*it;
}

void FieldReader::complain(const char* name, std::string_view wanted) {
  if (error_.empty()) error_ = fmt::format("{}: field '{}' is not {}", where_, name, wanted);
}

}  // namespace octile::cache
