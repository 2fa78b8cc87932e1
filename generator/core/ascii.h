// Letters and digits of ASCII. The functions of <cctype> depend on the host's locale, in which "I"
// may have another lower case, or a byte above 127 may be a letter.
#pragma once

#include <string>
#include <string_view>

namespace octile {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
constexpr char to_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}
constexpr bool is_letter(char c) { return to_lower(c) >= 'a' && to_lower(c) <= 'z'; }
constexpr bool is_letter_or_digit(char c) { return is_letter(c) || is_digit(c); }

inline std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = to_lower(c);
  return lower;
}

}  // namespace octile
