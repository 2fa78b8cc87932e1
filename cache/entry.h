// One cache entry: one kernel, one file. FORMAT.md is its grammar; this reader and writer are its
// only implementation and the inspector reuses them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "cache/key.h"

namespace octile::cache {

inline constexpr std::uint32_t kEntryVersion = 1;

// What a reader accepts, so that a forged size cannot make it allocate. A Hopper GEMM is about 60
// KB of cubin and 40 KB of source; the limits leave three orders of magnitude.
inline constexpr std::size_t kMaxEntryBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxKeyTextBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMaxMetadataBytes = std::size_t{1} << 20;

struct Metadata {
  std::string problem;  // canonical text of the problem that first asked for it
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
  std::string date;  // RFC 3339, UTC ("2026-01-31T12:00:00Z"); outside the compared identity
  friend bool operator==(const Metadata&, const Metadata&) = default;
};

struct Entry {
  Identity identity;
  Toolchain toolchain;
  Metadata metadata;
  std::vector<std::uint8_t> cubin;
  friend bool operator==(const Entry&, const Entry&) = default;
};

// What an entry says of itself ahead of its key and its cubin.
struct Head {
  std::string entry_name;
  std::string architecture;
  Toolchain toolchain;
  Metadata metadata;
  std::size_t cubin_bytes = 0;
  friend bool operator==(const Head&, const Head&) = default;
};

// The bytes of the file. Text outside the identity is expected to be UTF-8 (anything else is
// written as U+FFFD). Does not check the limits above: Store::publish() does.
std::vector<std::uint8_t> serialize(const Entry&);

// Whether the bytes begin as an entry of another version of the format does: not damaged, only not
// for this reader.
bool is_other_version(std::span<const std::uint8_t> bytes);

// Checks magic, version, sizes, checksum and that every byte is accounted for, before anything is
// used. The error says which check failed and where. Never allocates more than a small multiple of
// the input plus the declared (bounded) uncompressed source.
tl::expected<Entry, std::string> deserialize(std::span<const std::uint8_t> bytes);

// The same checks of the head alone: `first` is the beginning of a file of `file_bytes`, and has
// to hold head_end() of them. Says nothing about the key and the cubin.
tl::expected<Head, std::string> deserialize_head(std::span<const std::uint8_t> first,
                                                 std::uint64_t file_bytes);
tl::expected<std::size_t, std::string> head_end(std::span<const std::uint8_t> first,
                                                std::uint64_t file_bytes);

}  // namespace octile::cache
