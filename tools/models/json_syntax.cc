#include "tools/models/json_syntax.h"

#include <fmt/format.h>

#include <algorithm>

namespace octile::tools {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kEndsOfWords = " \t\r\n,:{}[]\"";

// Returns the text from `at` to the end of the word or of the string.
std::string_view word_at(std::string_view text, std::size_t at) {
  constexpr std::size_t kMostShown = 20;
  const std::size_t end = text[at] == '"'
                              ? std::min(text.find('"', at + 1), text.size() - 1) + 1
                              : std::min(text.find_first_of(kEndsOfWords, at), text.size());
  return text.substr(at, std::clamp<std::size_t>(end - at, 1, kMostShown));
}

bool ends_word(char c) { return kEndsOfWords.find(c) != std::string_view::npos; }

// Returns where the word begins that the byte belongs to or ends.
std::size_t word_begin(std::string_view text, std::size_t at) {
  while (at > 0 && !ends_word(text[at - 1])) --at;
  return at;
}

bool is_value(std::string_view word) {
  return word == "true" || word == "false" || word == "null" ||
         word.find_first_not_of("+-.0123456789Ee") == std::string_view::npos;
}

// Returns whether a string that began in the line of the byte is open there.
bool in_string(std::string_view text, std::size_t at) {
  const std::string_view line = text.substr(0, at).substr(text.substr(0, at).rfind('\n') + 1);
  return std::ranges::count(line, '"') % 2 == 1;
}

// Returns where the mistake begins: a parser notices that of a word or a string at its end.
std::size_t mistake_begin(std::string_view text, std::size_t at) {
  if (in_string(text, at)) return text[at] == '"' ? text.rfind('"', at - 1) : at;
  const std::size_t begin = word_begin(text, at);
  return ends_word(text[at]) && is_value(text.substr(begin, at - begin)) ? at : begin;
}

// Returns the last byte before `at` that is not white space, or 0.
char before(std::string_view text, std::size_t at) {
  const std::size_t last = text.substr(0, at).find_last_not_of(kSpaces);
  return last == std::string_view::npos ? '\0' : text[last];
}

std::string what_is_wrong(std::string_view text, std::size_t at) {
  const char found = text[at];
  const char last = before(text, at);
  if (found == '\n' && in_string(text, at)) return "a string does not end in its line";
  const auto byte = static_cast<unsigned char>(found);
  if (byte < 0x20 || byte >= 0x7f) {
    return fmt::format("the byte 0x{:02x} is not JSON; allowed: UTF-8 without control characters",
                       byte);
  }
  if (in_string(text, at)) {
    return fmt::format(
        "'{}' is not an escape; allowed: \\\", \\\\, \\/, \\b, \\f, \\n, \\r, \\t and "
        "\\uXXXX",
        text.substr(at == 0 ? 0 : at - 1, 2));
  }
  if ((found == '}' || found == ']') && last == ',') {
    return fmt::format("a comma precedes '{}'; allowed: none after the last value", found);
  }
  if (found == '\'') return "a string is in single quotes; allowed: double quotes";
  if (found == '/' || found == '#') return "there is a comment; allowed: none in JSON";
  const std::string_view allowed = last == ':'   ? "a value"
                                   : last == '{' ? "a name in double quotes, or '}'"
                                   : last == ',' ? "a name in double quotes, or a value"
                                   : last == '[' ? "a value, or ']'"
                                   : last == '"' ? "':', ',' or an end"
                                                 : "',' or an end";
  return fmt::format("'{}' is not what follows; allowed: {}", word_at(text, at), allowed);
}

}  // namespace

std::string json_syntax_error(std::string_view text, std::size_t byte) {
  if (text.find_first_not_of(kSpaces) == std::string_view::npos) {
    return "it is empty; allowed: one JSON object";
  }
  const bool ended = byte == 0 || byte > text.size();
  const std::size_t at = ended ? text.find_last_not_of(kSpaces) : mistake_begin(text, byte - 1);
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const std::size_t newline = text.substr(0, at).rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  return fmt::format("line {}, column {}: {}", line, column,
                     ended ? "the text ends here, within an object, an array or a string"
                           : what_is_wrong(text, at));
}

}  // namespace octile::tools
