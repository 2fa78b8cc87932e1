// The identity of a kernel (source, options, architecture) and the toolchain that compiled it. The
// hashed input is text with a tag on every field, so that a miss can be explained.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace octile::cache {

struct Identity {
  std::string entry_name;            // kernel symbol
  std::string architecture;          // "sm_90a"
  std::vector<std::string> options;  // compiler options, in order
  std::string source;                // complete source text
  friend bool operator==(const Identity&, const Identity&) = default;
};

struct Toolchain {
  std::string compiler;  // "nvrtc 13.0"
  std::string build;     // digest of the library files, hex
  std::string text() const { return compiler + " " + build; }
  friend bool operator==(const Toolchain&, const Toolchain&) = default;
};

// Returns lines that begin with a tag, "arch sm_90a" or "option -std=c++17", and at last "source
// <bytes>" before the source itself. An entry stores this key text in full and a lookup compares
// it, so a digest collision cannot run a wrong kernel. A backslash in a line is written as two, and
// a newline as a backslash and an n, so different identities never have the same text.
std::string key_text(const Identity&);

// Returns the identity that key_text() turns into `text`. Accepts only text that key_text() writes.
// The error says which line is wrong.
tl::expected<Identity, std::string> parse_key_text(std::string_view text);

// Returns the XXH3-128 of the text as 32 lower-case hex digits.
std::string digest_hex(std::string_view text);

}  // namespace octile::cache
