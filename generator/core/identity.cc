#include "generator/core/identity.h"

#include <algorithm>
#include <cstddef>

namespace octile {

std::string identity_text(std::string_view source) {
  std::string kept;
  kept.reserve(source.size());
  while (!source.empty()) {
    const std::size_t length = std::min(source.find('\n'), source.size() - 1) + 1;
    const std::string_view line = source.substr(0, length);
    source.remove_prefix(length);
    const bool empty = line.find_first_not_of(" \t\n") == std::string_view::npos;
    if (!empty && !line.starts_with("#line ")) kept += line;
  }
  return kept;
}

}  // namespace octile
