#include "tools/cache/archive_format.h"

#include <fmt/format.h>

#include "tools/common/sha256.h"

namespace octile::tools {

std::string member_name(const cache::FileStem& stem) {
  return fmt::format("v1/{}/{}", stem.folder(), stem.entry_name());
}

std::optional<cache::FileStem> stem_of_member(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto parsed = cache::parse_file_name(name.substr(slash + 1));
  if (!parsed || parsed->kind != cache::FileKind::kEntry || member_name(parsed->stem) != name) {
    return std::nullopt;
  }
  return parsed->stem;
}

std::string manifest_line(std::string_view name, std::span<const std::uint8_t> bytes) {
  return fmt::format("{} {} {}\n", sha256_hex(bytes), bytes.size(), name);
}

std::string error_text(const LibArchive& lib, archive* a) {
  const char* text = lib.archive_error_string(a);
  return text == nullptr ? "unknown error" : text;
}

}  // namespace octile::tools
