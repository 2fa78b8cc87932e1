// What identifies a kernel (source, options, architecture) and what it came from (toolchain). Every
// hashed field is tagged and the hashed input is text, so that a miss can be explained.
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

// Tagged lines ("arch sm_90a\n", "option -std=c++17\n", "source <bytes>\n<text>"): the key text
// that an entry stores in full and a lookup compares, so a digest collision cannot run a wrong
// kernel. In a line '\' is written "\\" and a newline "\n", so different identities never have the
// same text.
std::string key_text(const Identity&);

// The inverse. Accepts nothing but what key_text() writes; the error says which line is wrong.
tl::expected<Identity, std::string> parse_key_text(std::string_view text);

// XXH3-128 of the text, 32 lower-case hex digits.
std::string digest_hex(std::string_view text);

}  // namespace octile::cache
