// The terminal: its width, its colours, and text that fits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace octile::tools {

// Returns the columns that a line on stdout may have: COLUMNS if it is a number from 20 on, else
// the terminal's width, else 80.
std::size_t line_width();

// Return true if that stream is a terminal and NO_COLOR is not set.
bool stdout_has_colours();
bool stderr_has_colours();

// Returns the columns that the text takes in a terminal: one for each code point, two for wide ones
// as those of Chinese, Japanese and Korean, none for marks that are set over others.
std::size_t columns_of(std::string_view text);

// Returns the text with "..." instead of its middle if it takes more than `width` columns. A width
// below 5 counts as 5.
std::string cut_middle(std::string_view text, std::size_t width);

// Returns the name of a module, cut likewise so that the number of its layer stays, the first
// number among its parts: its beginning is cut first, then what follows the number.
std::string cut_module(std::string_view name, std::size_t width);

// Returns the text in lines of at most `width` columns, broken at spaces; every line but the first
// begins with `indent` spaces, which count. `column` is where the first line begins. Newlines of
// the text stay. A word that is longer than a line has a line of its own.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent = 0,
                    std::size_t column = 0);

}  // namespace octile::tools
