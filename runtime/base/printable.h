// Text for a terminal and for callers that expect UTF-8. Messages quote paths, files and logs of
// others, whose bytes may be anything.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace octile {

// Returns the text with "\x1b" instead of each byte that is not UTF-8, and of each byte of a
// character that a terminal obeys: control characters (C0, DEL, C1) and the marks that change the
// direction of text or break its lines (U+061C, U+200E, U+200F, U+2028 to U+202E, U+2066 to
// U+2069). Newlines and tabs stay.
std::string printable(std::string_view text);
// Returns the same with newlines and tabs escaped too, for a text that has to stay in its line.
std::string printable_line(std::string_view text);

// Writes printable(text) and returns its bytes. A text that does not fit ends in " ..." behind a
// whole character. Takes no memory.
std::size_t copy_printable(std::string_view text, std::span<char> to) noexcept;

}  // namespace octile
