#include "tools/doctor/without_paths.h"

#include <string_view>

#include "generator/core/ascii.h"
#include "runtime/base/environment.h"

namespace octile::tools {
namespace {

bool begins_path(std::string_view text, std::size_t at) {
  if (text[at] != '/' || at + 1 == text.size()) return false;
  const char before = at == 0 ? ' ' : text[at - 1], next = text[at + 1];
  // Not a quotient, a relative path or an address of the web.
  return !is_letter_or_digit(before) &&
         std::string_view("/.:>~)_-").find(before) == std::string_view::npos &&
         (is_letter_or_digit(next) || next == '.' || next == '_');
}

// Returns the path's end: the words of a sentence have none of these.
std::size_t end_of_path(std::string_view text, std::size_t at) {
  const std::size_t end = text.find_first_of(" \t\n\"'`(),;:", at);
  return end == std::string_view::npos ? text.size() : end;
}

}  // namespace

WithoutPaths::WithoutPaths(const Surroundings& surroundings) {
  known_.emplace_back(surroundings.cache_root, "<cache>");
  for (const std::string& root : surroundings.read_only_roots) known_.emplace_back(root, "<cache>");
  if (const auto home = environment_value("HOME")) known_.emplace_back(*home, "~");
  std::erase_if(known_, [](const auto& known) { return known.first.size() < 2; });
}

std::string WithoutPaths::of(std::string text) const {
  for (const auto& [folder, name] : known_)
    for (std::size_t at = 0; (at = text.find(folder, at)) != std::string::npos; at += name.size())
      text.replace(at, folder.size(), name);
  for (std::size_t at = 0; at < text.size(); ++at) {
    // Folders below a known one may be personal too: ~/models/secret/nvrtc.so.
    const bool is_behind =
        text[at] == '/' && at > 0 && (text[at - 1] == '~' || text[at - 1] == '>');
    if (!is_behind && !begins_path(text, at)) continue;
    const std::size_t end = end_of_path(text, at);
    const std::size_t last = text.find_last_of('/', end - 1);
    text.erase(is_behind ? at + 1 : at, last - at + (is_behind ? 0 : 1));
  }
  return text;
}

Json WithoutPaths::of(const Json& value) const {
  if (const std::string* text = value.string()) return of(*text);
  if (value.is_array()) {
    Json array = Json::array();
    for (const Json& element : value) array.push_back(of(element));
    return array;
  }
  if (!value.is_object()) return value;
  Json object = Json::object();
  for (const Json::Member& member : value.items()) object.add(member.name, of(member.value));
  return object;
}

}  // namespace octile::tools
