#include "cache/field_reader.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace octile::cache {
namespace {

template <typename Int>
std::optional<Int> as_integer(const Json* value) {
  const auto number = value == nullptr ? std::nullopt : value->integer();
  if (!number || !std::in_range<Int>(*number)) return std::nullopt;
  return static_cast<Int>(*number);
}

}  // namespace

void FieldReader::read(const char* name, std::string& out) {
  const Json* value = find(name);
  if (value == nullptr || value->string() == nullptr) return complain(name, "a string");
  out = *value->string();
}

void FieldReader::read(const char* name, int& out) {
  const auto number = as_integer<int>(find(name));
  if (!number) return complain(name, "a 32-bit integer");
  out = *number;
}

void FieldReader::read(const char* name, std::int64_t& out) {
  const auto number = as_integer<std::int64_t>(find(name));
  if (!number) return complain(name, "a 64-bit integer");
  out = *number;
}

void FieldReader::read(const char* name, double& out) {
  const Json* value = find(name);
  const auto number = value == nullptr ? std::nullopt : value->number();
  if (!number) return complain(name, "a number");
  out = *number;
}

void FieldReader::read(const char* name, std::vector<int>& out) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_array()) return complain(name, "an array of integers");
  for (const Json& item : *value) {
    const auto number = as_integer<int>(&item);
    if (!number) return complain(name, "an array of integers");
    out.push_back(*number);
  }
}

void FieldReader::complain(const char* name, std::string_view wanted) {
  if (error_.empty()) error_ = fmt::format("{}: field '{}' is not {}", where_, name, wanted);
}

}  // namespace octile::cache
