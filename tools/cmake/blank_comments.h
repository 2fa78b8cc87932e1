// Blanks the comments of C++ and CUDA text, so that no comment becomes part of an emitted kernel.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octile::build {

// Returns `text` without its comments and without spaces before line ends. Line ends stay, also
// those within a comment, so that a compiler's message names the same line of the file. Comment
// markers within string and character literals are text. Raw string literals are not supported.
inline std::string blank_comments(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  const auto trim_line = [&kept] {
    while (!kept.empty() && (kept.back() == ' ' || kept.back() == '\t')) kept.pop_back();
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view two = text.substr(i, 2);
    if (two == "//") {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (two == "/*") {
      const std::size_t end = text.find("*/", i + 2);
      const std::size_t length = end == std::string_view::npos ? end : end + 2 - i;
      const std::string_view comment = text.substr(i, length);
      kept += ' ';  // a comment separates two words
      for (const char c : comment) {
        if (c != '\n') continue;
        trim_line();
        kept += c;
      }
      i += comment.size();
    } else if (text[i] == '"' || text[i] == '\'') {
      const char quote = text[i];
      do {
        if (text[i] == '\\' && i + 1 < text.size()) kept += text[i++];
        kept += text[i++];
      } while (i < text.size() && text[i] != quote && text[i] != '\n');
      if (i < text.size() && text[i] == quote) kept += text[i++];
    } else {
      if (text[i] == '\n') trim_line();
      kept += text[i++];
    }
  }
  trim_line();
  return kept;
}

}  // namespace octile::build
