// One cache entry: one kernel, one file. FORMAT.md is its grammar; this reader and writer are its only
// implementation and the inspector reuses them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "cache/key.h"

namespace octile::cache {

struct Metadata {
  std::string problem;         // canonical text of the problem that first asked for it
  std::string config;          // configuration text
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
  std::string date;            // RFC 3339, UTC; outside the compared identity
};

struct Entry {
  Identity identity;
  Toolchain toolchain;
  Metadata metadata;
  std::vector<std::uint8_t> cubin;
};

std::vector<std::uint8_t> serialize(const Entry&);

// Checks magic, version, sizes, checksum and that every byte is accounted for, before anything is
// used. The error says which check failed and where. Never allocates more than a small multiple of
// the input plus the declared (bounded) uncompressed source.
tl::expected<Entry, std::string> deserialize(std::span<const std::uint8_t> bytes);

}  // namespace octile::cache
