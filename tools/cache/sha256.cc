#include "tools/cache/sha256.h"

#include <sha256.h>

#include <array>

namespace octile::tools {

std::string sha256_hex(std::span<const std::uint8_t> bytes) {
  std::array<char, SHA256_DIGEST_STRING_LENGTH> hex{};
  SHA256Data(bytes.data(), bytes.size(), hex.data());
  return hex.data();
}

std::string sha256_hex(std::string_view text) {
  return sha256_hex({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace octile::tools
