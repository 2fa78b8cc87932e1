#include "runtime/base/printable.h"

#include <array>
#include <cstddef>

namespace octile {
namespace {

// Returns the length of the UTF-8 sequence at the beginning, or 0 if there is none: no byte, an
// overlong form, a surrogate, a value above U+10FFFF.
std::size_t sequence_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : bytes;
}

char32_t code_point(std::string_view sequence) {
  constexpr std::array<unsigned, 5> kBitsOfFirst{0, 0x7f, 0x1f, 0x0f, 0x07};
  char32_t code = static_cast<unsigned char>(sequence[0]) & kBitsOfFirst.at(sequence.size());
  for (const char c : sequence.substr(1))
    code = code << 6U | (static_cast<unsigned char>(c) & 0x3fU);
  return code;
}

bool is_obeyed(char32_t code) {
  const auto within = [code](char32_t first, char32_t last) {
    return code >= first && code <= last;
  };
  return code < 0x20 || within(0x7f, 0x9f) || code == 0x61c || within(0x200e, 0x200f) ||
         within(0x2028, 0x202e) || within(0x2066, 0x2069);
}

// A character of the text as it is shown.
struct Shown {
  std::array<char, 16> bytes{};  // four of each byte that is escaped
  std::size_t size = 0;
  std::string_view text() const { return {bytes.data(), size}; }
};

// Takes the first character off the text.
Shown take_shown(std::string_view& text, std::string_view kept) {
  const std::size_t bytes = sequence_bytes(text);
  const std::string_view sequence = text.substr(0, bytes == 0 ? 1 : bytes);
  text.remove_prefix(sequence.size());
  const bool harmless = bytes != 0 && !is_obeyed(code_point(sequence));
  Shown shown;
  if (harmless || (bytes == 1 && kept.find(sequence[0]) != std::string_view::npos)) {
    shown.size = sequence.copy(shown.bytes.data(), shown.bytes.size());
    return shown;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : sequence) {
    const auto byte = static_cast<unsigned char>(c);
    for (const char digit : {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 0xfU]})
      shown.bytes.at(shown.size++) = digit;
  }
  return shown;
}

constexpr std::string_view kLayout = "\n\t";

std::string escaped(std::string_view text, std::string_view kept) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) result += take_shown(text, kept).text();
  return result;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, kLayout); }
std::string printable_line(std::string_view text) { return escaped(text, ""); }

std::size_t copy_printable(std::string_view text, std::span<char> to) noexcept {
  constexpr std::string_view kCut = " ...";
  std::size_t size = 0, cut = 0;  // cut: where the mark of a cut goes
  while (!text.empty()) {
    const Shown shown = take_shown(text, kLayout);
    if (size + shown.size > to.size()) return cut + kCut.copy(&to[cut], to.size() - cut);
    size += shown.text().copy(&to[size], shown.size);
    if (size + kCut.size() <= to.size()) cut = size;
  }
  return size;
}

}  // namespace octile
