// Says where a text stops being JSON.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octile::tools {

// Returns "line 3, column 14: ..." with the text there and the allowed ones. `byte` is the number
// of bytes that a parser had read when it gave up; more than the text has, or 0, if the text ended.
std::string json_syntax_error(std::string_view text, std::size_t byte);

}  // namespace octile::tools
