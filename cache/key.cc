#include "cache/key.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>

namespace octile::cache {
namespace {

std::string escape(std::string_view value) {
  std::string line;
  line.reserve(value.size());
  for (const char c : value) {
    if (c == '\\') {
      line += "\\\\";
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  return line;
}

// A backslash that escapes nothing is dropped here. parse_key_text() then refuses the text, because
// the parsed identity does not print the same text again.
std::string unescape(std::string_view line) {
  std::string value;
  value.reserve(line.size());
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) {
      ++i;
      value += line[i] == 'n' ? '\n' : line[i];
    } else if (line[i] != '\\') {
      value += line[i];
    }
  }
  return value;
}

// Removes "<tag> <value>
// " from the front of `rest`. Returns false and leaves `rest` unchanged if it does not begin with
// `tag`.
bool take_line(std::string_view& rest, std::string_view tag, std::string_view& value) {
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos || !rest.starts_with(tag) || rest[tag.size()] != ' ') {
    return false;
  }
  value = rest.substr(tag.size() + 1, end - tag.size() - 1);
  rest.remove_prefix(end + 1);
  return true;
}

}  // namespace

std::string key_text(const Identity& id) {
  std::string text =
      fmt::format("entry {}\narch {}\n", escape(id.entry_name), escape(id.architecture));
  for (const std::string& option : id.options) text += fmt::format("option {}\n", escape(option));
  text += fmt::format("source {}\n", id.source.size());
  return text + id.source;
}

tl::expected<Identity, std::string> parse_key_text(std::string_view text) {
  Identity id;
  std::string_view rest = text;
  std::string_view value;
  if (!take_line(rest, "entry", value)) return tl::unexpected<std::string>("no 'entry' line");
  id.entry_name = unescape(value);
  if (!take_line(rest, "arch", value)) return tl::unexpected<std::string>("no 'arch' line");
  id.architecture = unescape(value);
  while (take_line(rest, "option", value)) id.options.push_back(unescape(value));
  if (!take_line(rest, "source", value)) {
    return tl::unexpected<std::string>("neither an 'option' nor a 'source' line");
  }
  std::size_t source_bytes = 0;
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), source_bytes);
  if (error != std::errc{} || end != value.data() + value.size() || source_bytes != rest.size()) {
    return tl::unexpected(
        fmt::format("the 'source' line says '{}' bytes, {} follow", value, rest.size()));
  }
  id.source = std::string(rest);
  if (key_text(id) != text) return tl::unexpected<std::string>("not in canonical form");
  return id;
}

std::string digest_hex(std::string_view text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace octile::cache
