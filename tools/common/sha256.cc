#include "tools/common/sha256.h"

#include <sha256.h>

#include <array>

namespace octile::tools {

struct Sha256::State {
  SHA2_CTX context{};
};

Sha256::Sha256() : state_(std::make_unique<State>()) { SHA256Init(&state_->context); }
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::uint8_t> bytes) {
  SHA256Update(&state_->context, bytes.data(), bytes.size());
}

std::string Sha256::hex() {
  std::array<char, SHA256_DIGEST_STRING_LENGTH> hex{};
  SHA256End(&state_->context, hex.data());
  return hex.data();
}

std::string sha256_hex(std::span<const std::uint8_t> bytes) {
  Sha256 digest;
  digest.add(bytes);
  return digest.hex();
}

std::string sha256_hex(std::string_view text) {
  return sha256_hex({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace octile::tools
