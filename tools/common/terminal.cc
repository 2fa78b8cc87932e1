#include "tools/common/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "runtime/base/environment.h"

namespace octile::tools {
namespace {

constexpr std::size_t kDefaultWidth = 80;
constexpr std::size_t kLeastWidth = 20;

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

// Returns the first `count` code points of the text.
std::string_view first_of(std::string_view text, std::size_t count) {
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    if (begins_code_point(text[i]) && count-- == 0) break;
  }
  return text.substr(0, i);
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
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_code_point));
}

std::string cut_middle(std::string_view text, std::size_t width) {
  const std::size_t columns = columns_of(text);
  width = std::max<std::size_t>(width, 5);
  if (columns <= width) return std::string(text);
  constexpr std::string_view kGap = "...";
  const std::size_t kept = width - kGap.size();
  const std::string_view head = first_of(text, kept - kept / 2);
  const std::string_view before_tail = first_of(text, columns - kept / 2);
  return std::string(head).append(kGap).append(text.substr(before_tail.size()));
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
