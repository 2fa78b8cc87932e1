#include "tools/common/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/environment.h"

namespace octile::tools {
namespace {

constexpr std::size_t kDefaultWidth = 80;
constexpr std::size_t kLeastWidth = 20;
constexpr std::string_view kEllipsis = "...";  // stands for the rest
constexpr std::size_t kLeastCut = 5;           // a letter of each end beside it

std::optional<std::size_t> width_of_environment() {
  const auto text = environment_value("COLUMNS");
  if (!text) return std::nullopt;
  std::size_t columns = 0;
  const char* const end = text->data() + text->size();
  const auto [last, error] = std::from_chars(text->data(), end, columns);
  if (error != std::errc() || last != end || columns < kLeastWidth) return std::nullopt;
  return columns;
}

bool has_colours(int fd) { return ::isatty(fd) == 1 && !environment_value("NO_COLOR"); }

bool begins_code_point(char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }

// Code points that take no column or two, by Unicode's classes of East Asian width.
struct WidthRange {
  char32_t first, last;
  std::size_t columns;
};
constexpr std::array kWidths = std::to_array<WidthRange>({
    {0x0300, 0x036F, 0},
    {0x1100, 0x115F, 2},
    {0x200B, 0x200F, 0},
    {0x2E80, 0x303E, 2},
    {0x3041, 0x4DBF, 2},
    {0x4E00, 0xA4CF, 2},
    {0xA960, 0xA97F, 2},
    {0xAC00, 0xD7A3, 2},
    {0xF900, 0xFAFF, 2},
    {0xFE00, 0xFE0F, 0},
    {0xFE30, 0xFE6F, 2},
    {0xFF01, 0xFF60, 2},
    {0xFFE0, 0xFFE6, 2},
    {0x1F300, 0x1F64F, 2},
    {0x1F680, 0x1F6FF, 2},
    {0x1F900, 0x1F9FF, 2},
    {0x20000, 0x3FFFD, 2},
});

std::size_t columns_of_code_point(char32_t code) {
  const auto* const range = std::ranges::find_if(
      kWidths, [&](const WidthRange& one) { return code >= one.first && code <= one.last; });
  return range == kWidths.end() ? 1 : range->columns;
}

// Returns the length in bytes of the first code point of a text that is not empty, and what it is.
std::pair<std::size_t, char32_t> first_code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  char32_t code = lead < 0xC0   ? lead
                  : lead < 0xE0 ? lead & 0x1FU
                  : lead < 0xF0 ? lead & 0x0FU
                                : lead & 0x07U;
  std::size_t bytes = 1;
  for (; bytes < text.size() && !begins_code_point(text[bytes]); ++bytes) {
    code = (code << 6U) | (static_cast<unsigned char>(text[bytes]) & 0x3FU);
  }
  return {bytes, code};
}

// Returns the beginning of the text that takes no more than that many columns.
std::string_view first_of(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto [bytes, code] = first_code_point(text.substr(at));
    const std::size_t wide = columns_of_code_point(code);
    if (wide > columns) break;
    columns -= wide;
    at += bytes;
  }
  return text.substr(0, at);
}

// Returns the end of the text that takes no more than that many columns.
std::string_view last_of(std::string_view text, std::size_t columns) {
  const std::size_t all = columns_of(text);
  std::size_t at = 0, before = 0;
  while (at < text.size() && all - before > columns) {
    const auto [bytes, code] = first_code_point(text.substr(at));
    before += columns_of_code_point(code);
    at += bytes;
  }
  return text.substr(at);
}

// Appends one line of the text, which has no newline.
void append_wrapped(std::string_view line, std::size_t width, std::size_t indent,
                    std::size_t& column, std::string& out) {
  bool at_start = true;
  while (!line.empty()) {
    const std::size_t spaces = std::min(line.find_first_not_of(' '), line.size());
    line.remove_prefix(spaces);
    if (line.empty()) return;
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(word.size());
    const std::size_t gap = at_start ? spaces : std::max<std::size_t>(1, spaces);
    if (!at_start && column + gap + columns_of(word) > width) {
      out.append("\n").append(indent, ' ');
      column = indent;
    } else {
      out.append(gap, ' ');
      column += gap;
    }
    out += word;
    column += columns_of(word);
    at_start = false;
  }
}

}  // namespace

std::size_t line_width() {
  if (const auto columns = width_of_environment()) return *columns;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kLeastWidth) {
    return size.ws_col;
  }
  return kDefaultWidth;
}

bool stdout_has_colours() { return has_colours(STDOUT_FILENO); }
bool stderr_has_colours() { return has_colours(STDERR_FILENO); }

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const auto [bytes, code] = first_code_point(text);
    columns += columns_of_code_point(code);
    text.remove_prefix(bytes);
  }
  return columns;
}

std::string cut_middle(std::string_view text, std::size_t width) {
  width = std::max(width, kLeastCut);
  if (columns_of(text) <= width) return std::string(text);
  const std::size_t kept = width - kEllipsis.size();
  return std::string(first_of(text, kept - kept / 2))
      .append(kEllipsis)
      .append(last_of(text, kept / 2));
}

std::string cut_module(std::string_view name, std::size_t width) {
  width = std::max(width, kLeastCut);
  if (columns_of(name) <= width) return std::string(name);
  // The part that is a number, with the point behind it.
  std::size_t begin = 0, end = 0;
  for (std::size_t at = 0; at < name.size() && end == 0;) {
    const std::size_t stop = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, stop - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      begin = at;
      end = std::min(stop + 1, name.size());
    }
    at = stop + 1;
  }
  const std::size_t before = begin == 0 ? 0 : kEllipsis.size();
  const std::size_t number = end - begin;
  if (end == 0 || before + number + kLeastCut > width) return cut_middle(name, width);
  const std::size_t after = columns_of(name.substr(end));
  if (before + number + after <= width) {
    return std::string(kEllipsis).append(last_of(name, width - kEllipsis.size()));
  }
  return std::string(kEllipsis.substr(0, before))
      .append(name.substr(begin, number))
      .append(cut_middle(name.substr(end), width - before - number));
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent,
                    std::size_t column) {
  std::string out;
  for (bool first = true;; first = false) {
    if (!first) {
      out.append("\n").append(indent, ' ');
      column = indent;
    }
    const std::size_t end = std::min(text.find('\n'), text.size());
    append_wrapped(text.substr(0, end), width, indent, column, out);
    if (end == text.size()) return out;
    text.remove_prefix(end + 1);
  }
}

}  // namespace octile::tools
