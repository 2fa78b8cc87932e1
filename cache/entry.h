// Serialises and parses one cache entry: one kernel in one file. FORMAT.md gives the grammar. This
// is the only reader and writer, and the inspector reuses it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "cache/key.h"

namespace octile::cache {

inline constexpr std::uint32_t kEntryVersion = 1;

// Limits that a reader accepts, so that a forged size cannot make it allocate. A Hopper GEMM has
// about 60 KB of cubin and 40 KB of source, so the limits leave three orders of magnitude.
inline constexpr std::size_t kMaxEntryBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxKeyTextBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxMetadataBytes = std::size_t{1} << 20;

struct Metadata {
  std::string problem;  // canonical text of the problem that first requested the kernel
  std::string config;   // configuration text
  int registers = 0;
  int static_smem_bytes = 0;
  int dynamic_smem_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  int threads = 0;
  int cluster_size = 1;
  std::vector<int> parameter_bytes;
  double compile_ms = 0;
  std::string date;  // RFC 3339, UTC ("2026-01-31T12:00:00Z"); not part of the compared identity
  friend bool operator==(const Metadata&, const Metadata&) = default;
};

struct Entry {
  Identity identity;
  Toolchain toolchain;
  Metadata metadata;
  std::vector<std::uint8_t> cubin;
  friend bool operator==(const Entry&, const Entry&) = default;
};

// The fields that precede an entry's key and cubin.
struct Head {
  std::string entry_name;
  std::string architecture;
  Toolchain toolchain;
  Metadata metadata;
  std::size_t cubin_bytes = 0;
  friend bool operator==(const Head&, const Head&) = default;
};

// Returns the bytes of the file. Text outside the identity should be UTF-8; other bytes are written
// as U+FFFD. Store::publish(), not this function, checks the limits above.
std::vector<std::uint8_t> serialize(const Entry&);

// Returns true if the bytes begin like an entry of another format version. Such an entry is intact,
// but this reader cannot use it.
bool is_other_version(std::span<const std::uint8_t> bytes);

// Returns the entry after checking magic, version, sizes and checksum, and that no byte is left
// over. The error says which check failed and where; then the bytes are damaged. Memory that is
// refused is std::bad_alloc, never an error. Allocates at most a small multiple of the input plus
// the declared, bounded, uncompressed source.
tl::expected<Entry, std::string> deserialize(std::span<const std::uint8_t> bytes);

// Return the head, and the offset of its end, after the same checks of the head alone. `first` is
// the beginning of a file of `file_bytes`; deserialize_head() needs at least head_end() bytes of
// it. Neither function checks the key or the cubin.
tl::expected<Head, std::string> deserialize_head(std::span<const std::uint8_t> first,
                                                 std::uint64_t file_bytes);
tl::expected<std::size_t, std::string> head_end(std::span<const std::uint8_t> first,
                                                std::uint64_t file_bytes);

}  // namespace octile::cache
