// SHA-256, which pins an archive against people, as XXH3 cannot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace octile::tools {

inline constexpr std::size_t kSha256Digits = 64;

// Returns the digest as lower-case hex digits.
std::string sha256_hex(std::span<const std::uint8_t> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace octile::tools
