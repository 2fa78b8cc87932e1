#include "tools/models/config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "generator/core/text_fields.h"
#include "tools/models/document.h"

namespace octile::tools {
const Json* Keys::find(std::string_view name) const {
  const Json* object = &object_;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    object = object->find(name.substr(0, dot));
    if (object == nullptr || !object->is_object()) return nullptr;
    name.remove_prefix(dot + 1);
  }
  const Json* found = object->find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}

bool Keys::has(std::string_view name) const { return find(name) != nullptr; }

bool Keys::has_any(Names names) const { return !first_of(names).empty(); }

std::string_view Keys::first_of(Names names) const {
  const auto* const found =
      std::ranges::find_if(names, [this](std::string_view name) { return has(name); });
  return found == names.end() ? std::string_view() : *found;
}

std::optional<std::int64_t> Keys::default_of(Names names) const {
  for (const auto& [name, value] : defaults_) {
    if (std::ranges::find(names, name) != names.end()) return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> Keys::number_of(const Json& value, std::int64_t least,
                                            std::int64_t most) const {
  const auto number = value.integer();
  return !number || *number < least || *number > most ? std::nullopt : number;
}

std::int64_t Keys::read(std::string_view name, std::int64_t least, std::int64_t most) {
  const Json& value = *find(name);
  const bool list = value.is_array() && !value.empty();
  const auto number = number_of(list ? value.at(0) : value, least, most);
  if (!number) {
    refuse(name, fmt::format("an integer from {} to {}", least, most));
    return 1;
  }
  if (list && std::ranges::any_of(value, [&](const Json& v) { return v != value.at(0); })) {
    refuse(name, "one number for all layers");
  }
  return *number;
}

Extent Keys::count(Names names, std::int64_t most) {
  if (const std::string_view name = first_of(names); !name.empty()) {
    return {read(name, 1, most), full(name)};
  }
  if (const auto value = default_of(names)) return {*value, full(*names.begin())};
  refuse(*names.begin(), fmt::format("an integer from 1 to {}", most));
  return {1, full(*names.begin())};
}

Extent Keys::count_or(Names names, const Extent& otherwise) {
  return has_any(names) || default_of(names) ? count(names) : otherwise;
}

std::int64_t Keys::count_from_zero(Names names, std::int64_t otherwise, std::int64_t most) {
  if (const std::string_view name = first_of(names); !name.empty()) return read(name, 0, most);
  return default_of(names).value_or(otherwise);
}

std::int64_t Keys::last_layer(std::string_view name, std::int64_t layers) {
  const Json* value = find(name);
  if (value == nullptr || *value == -1) return layers - 1;
  const std::int64_t last = read(name, 0);
  if (last >= layers) refuse(name, fmt::format("-1, or a layer from 0 to {}", layers - 1));
  return last;
}

bool Keys::flag(std::string_view name, bool otherwise) {
  const Json* value = find(name);
  if (value == nullptr) return default_of({name}).value_or(otherwise ? 1 : 0) != 0;
  if (!value->boolean()) refuse(name, "true or false");
  return value->boolean().value_or(otherwise);
}

bool Keys::is_list(std::string_view name) const {
  const Json* value = find(name);
  return value != nullptr && value->is_array();
}

bool Keys::is_text(std::string_view name) const {
  const Json* value = find(name);
  return value != nullptr && value->string() != nullptr;
}

const Json* Keys::list_of(std::string_view name, std::int64_t size) {
  const Json* value = find(name);
  if (value == nullptr || !value->is_array()) {
    refuse(name, "a list");
    return nullptr;
  }
  if (static_cast<std::int64_t>(value->size()) < size) {
    refuse_text(fmt::format("{} has {} entries; allowed: {}, one for each layer", full(name),
                            value->size(), size));
    return nullptr;
  }
  return value;
}

std::vector<std::string> Keys::texts(std::string_view name, std::int64_t size, Names allowed) {
  std::vector<std::string> all;
  const Json* list = list_of(name, size);
  for (std::int64_t i = 0; list != nullptr && i < size; ++i) {
    const Json& value = list->at(static_cast<std::size_t>(i));
    const bool known =
        value.string() != nullptr && std::ranges::find(allowed, *value.string()) != allowed.end();
    if (!known) {
      refuse_text(fmt::format("{}[{}] is {}; allowed: {}", full(name), i, excerpt(value),
                              fmt::join(allowed, ", ")));
      break;
    }
    all.push_back(*value.string());
  }
  all.resize(static_cast<std::size_t>(size));
  return all;
}

std::vector<std::int64_t> Keys::numbers(std::string_view name) {
  std::vector<std::int64_t> all;
  const Json* list = list_of(name, 0);
  if (list == nullptr) return all;
  for (const Json& value : *list) {
    const auto number = number_of(value, 0);
    if (!number) {
      refuse(name, fmt::format("a list of integers from 0 to {}", kMostCount));
      break;
    }
    all.push_back(*number);
  }
  return all;
}

std::vector<std::int64_t> Keys::numbers(std::string_view name, std::int64_t size) {
  std::vector<std::int64_t> all;
  if (list_of(name, size) != nullptr) all = numbers(name);
  all.resize(static_cast<std::size_t>(size));
  return all;
}

void Keys::refuse(std::string_view name, std::string_view allowed) {
  const Json* value = object_.find(name);
  if (value == nullptr) value = find(name);
  refuse_text(value == nullptr
                  ? fmt::format("{} is missing; allowed: {}", full(name), allowed)
                  : fmt::format("{} is {}; allowed: {}", full(name), excerpt(*value), allowed));
}

void Keys::refuse_text(std::string_view sentence) {
  if (status_)
    status_ = fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin_, sentence));
}

}  // namespace octile::tools
