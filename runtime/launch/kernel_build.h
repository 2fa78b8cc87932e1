// A compiled kernel and everything known about it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/key.h"
#include "generator/families.h"

namespace octile {

enum class CacheState { kHit, kMiss, kMemory };
std::string_view name_of(CacheState state);  // "hit", "miss", "memory"

// A compiled kernel and where it came from. Immutable.
struct KernelBuild {
  EmittedKernel emitted;
  std::string architecture;    // "sm_90a"
  std::string source_digest;   // covers source, options, architecture and name
  cache::Toolchain toolchain;  // made the cubin, perhaps in another process
  std::vector<std::uint8_t> cubin;
  int registers = 0;  // at entry
  int static_smem_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  double compile_ms = 0;                  // the compile that made the cubin
  CacheState origin = CacheState::kMiss;  // kHit: from disk; kMiss: compiled by this process
  std::string cache_path;                 // where it was found; empty for kMiss
};

}  // namespace octile
