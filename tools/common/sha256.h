// SHA-256, which pins an archive against people, as XXH3 cannot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace octile::tools {

inline constexpr std::size_t kSha256Digits = 64;

// The digest of bytes that arrive in parts.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void add(std::span<const std::uint8_t> bytes);
  // Returns the digest of all bytes added, as lower-case hex digits. Nothing is added afterwards.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the digest as lower-case hex digits.
std::string sha256_hex(std::span<const std::uint8_t> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace octile::tools
