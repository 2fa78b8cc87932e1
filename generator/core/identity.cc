#include "generator/core/identity.h"

#include <algorithm>
#include <cstddef>

namespace octile {
namespace {

// Leaves out the groups that `#ifndef OCTILE_EMITTED` begins, line by line.
class EmittedLines {
 public:
  // Returns false for a line that the compiler skips because OCTILE_EMITTED is defined.
  bool sees(std::string_view line) {
    if (depth_ > 0) {
      if (line.starts_with("#if")) ++depth_;
      if (line.starts_with("#endif")) --depth_;
      return false;
    }
    if (!line.starts_with("#ifndef OCTILE_EMITTED")) return true;
    depth_ = 1;
    return false;
  }

 private:
  int depth_ = 0;  // nested conditionals within the group
};

}  // namespace

std::string identity_text(std::string_view source) {
  std::string kept;
  kept.reserve(source.size());
  EmittedLines emitted;
  while (!source.empty()) {
    const std::size_t length = std::min(source.find('\n'), source.size() - 1) + 1;
    const std::string_view line = source.substr(0, length);
    source.remove_prefix(length);
    const bool empty = line.find_first_not_of(" \t\n") == std::string_view::npos;
    if (emitted.sees(line) && !empty && !line.starts_with("#line ")) kept += line;
  }
  return kept;
}

}  // namespace octile
