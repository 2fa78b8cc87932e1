// libFuzzer target of the entry reader. A random input never has correct checksums, so each one is
// read twice: unchanged, and with corrected checksums, which reaches the checks after them.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "cache/entry.h"

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kHeaderBytes = 48;
constexpr std::size_t kChecksumBytes = 16;

void store_checksum(Bytes& bytes, std::size_t end) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), end);
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[end + i] = static_cast<std::uint8_t>(hash.low64 >> (8 * i));
    bytes[end + 8 + i] = static_cast<std::uint8_t>(hash.high64 >> (8 * i));
  }
}

std::uint64_t metadata_bytes_of(const Bytes& bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::uint64_t{bytes[16 + i]} << (8 * i);
  return value;
}

// An accepted entry can be written again and then means the same.
void read(std::span<const std::uint8_t> bytes) {
  const auto head = octile::cache::deserialize_head(bytes, bytes.size());
  const auto entry = octile::cache::deserialize(bytes);
  if (!entry) return;
  if (!head || head->metadata != entry->metadata) std::abort();
  const auto again = octile::cache::deserialize(octile::cache::serialize(*entry));
  if (!again || *again != *entry) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read({data, size});
  Bytes bytes(data, data + size);
  if (bytes.size() < kHeaderBytes + 2 * kChecksumBytes) return 0;
  const std::uint64_t metadata_bytes = metadata_bytes_of(bytes);
  if (metadata_bytes <= bytes.size() - kHeaderBytes - 2 * kChecksumBytes) {
    store_checksum(bytes, kHeaderBytes + metadata_bytes);
  }
  store_checksum(bytes, bytes.size() - kChecksumBytes);
  read(bytes);
  return 0;
}
