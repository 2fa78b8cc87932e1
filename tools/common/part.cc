#include "tools/common/part.h"

#include <fmt/format.h>

#include <charconv>

namespace octile::tools {

Result<Part> read_part(const std::string& text) {
  Part part;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, part.index);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == '/') {
    const auto second = std::from_chars(first.ptr + 1, end, part.count);
    if (second.ec == std::errc() && second.ptr == end && 1 <= part.index &&
        part.index <= part.count) {
      return part;
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--part is '{}'; allowed: I/N with 1 <= I <= N, such as 1/4", text));
}

}  // namespace octile::tools
