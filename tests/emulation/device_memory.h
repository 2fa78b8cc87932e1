// Global memory as emulated kernels see it: templates/lib/memory.cuh written for the host, which
// checks that every access stays within a tensor.
#pragma once
// The templates contain pragmas and implicit conversions that only CUDA accepts without a warning.
#pragma GCC system_header

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "tests/support/device_emulation.h"

#define OCTILE_EMITTED 1
#include "templates/lib/types.cuh"

namespace octile::emulation {

// A tensor of which only the elements may be touched.
struct Watched {
  const char* base = nullptr;
  std::int64_t rows = 0, row_bytes = 0, stride_bytes = 0;
  bool holds(const void* p, std::int64_t bytes) const {
    const std::int64_t offset = static_cast<const char*>(p) - base;
    if (base == nullptr || offset < 0 || stride_bytes == 0) return false;
    return offset / stride_bytes < rows && offset % stride_bytes + bytes <= row_bytes;
  }
};
// The memory that a kernel may read, and the memory that it may write.
inline std::vector<Watched> readable;
inline std::vector<Watched> writable;
inline std::int64_t stray_accesses = 0;
inline std::int64_t misaligned_accesses = 0;

inline bool may_access(std::span<const Watched> tensors, const void* p, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(bytes) != 0) {
    ++misaligned_accesses;
  }
  for (const Watched& tensor : tensors) {
    if (tensor.holds(p, bytes)) return true;
  }
  ++stray_accesses;
  return false;
}

template <typename T>
T checked_load(const void* p) {
  T value{};
  if (may_access(readable, p, sizeof(T))) std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
void checked_store(void* p, T value) {
  if (may_access(writable, p, sizeof(T))) std::memcpy(p, &value, sizeof(T));
}

}  // namespace octile::emulation

namespace memory {
struct alignas(16) Words4 {
  u32 word[4];
};
struct alignas(8) Words2 {
  u32 word[2];
};
inline Words4 load_16(const void* p) { return octile::emulation::checked_load<Words4>(p); }
inline Words2 load_8(const void* p) { return octile::emulation::checked_load<Words2>(p); }
inline u32 load_1(const void* p) { return octile::emulation::checked_load<u8>(p); }
inline u32 load_4(const void* p) { return octile::emulation::checked_load<u32>(p); }
inline Words4 reread_16(const void* p) { return load_16(p); }
inline u32 glance_4(const void* p) { return *static_cast<const u32*>(p); }
inline u32 load_2(const void* p) { return octile::emulation::checked_load<u16>(p); }
// Copies at once. A thread that reads before it has waited therefore goes unnoticed.
inline void copy_16(Words4* to, const void* p, bool wanted) {
  if (wanted) *to = load_16(p);
}
inline void commit_copies() {}
template <int kPending>
void wait_copies() {}
inline void store_16(void* p, const Words4& v) { octile::emulation::checked_store(p, v); }
inline void store_8(void* p, u32 lower, u32 upper) {
  octile::emulation::checked_store<u64>(p, static_cast<u64>(upper) << 32 | lower);
}
inline void store_4(void* p, u32 value) { octile::emulation::checked_store<u32>(p, value); }
inline void store_2(void* p, u32 value) {
  octile::emulation::checked_store<u16>(p, static_cast<u16>(value));
}
inline void store_1(void* p, u32 value) {
  octile::emulation::checked_store<u8>(p, static_cast<u8>(value));
}
}  // namespace memory
