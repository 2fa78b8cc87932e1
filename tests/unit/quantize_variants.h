// The quantise templates as host code: their wrappers (cast, memory) written for the host, and a
// covering set of numerics and configurations, each in a namespace of its own.
#pragma once
// The templates carry pragmas and implicit conversions that are CUDA's business.
#pragma GCC system_header

#include <cmath>
#include <cstdint>
#include <cstring>

#include "generator/quantize_config.h"
#include "runtime/reference/cast.h"
#include "tests/support/device_emulation.h"

// ---- the wrappers of templates/lib, on the host
// -----------------------------------------------------
namespace octile::emulation {

// A tensor whose elements alone may be touched.
struct Watched {
  const char* base = nullptr;
  std::int64_t rows = 0, row_bytes = 0, stride_bytes = 0;
  bool holds(const void* p, std::int64_t bytes) const {
    const std::int64_t offset = static_cast<const char*>(p) - base;
    if (offset < 0 || stride_bytes == 0) return false;
    return offset / stride_bytes < rows && offset % stride_bytes + bytes <= row_bytes;
  }
};
inline Watched watched_x, watched_q;
inline std::int64_t stray_accesses = 0;
inline std::int64_t misaligned_accesses = 0;

inline void expect_access(const Watched& tensor, const void* p, std::int64_t bytes) {
  if (!tensor.holds(p, bytes)) ++stray_accesses;
  if (reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(bytes) != 0) {
    ++misaligned_accesses;
  }
}

template <typename T>
T checked_load(const void* p) {
  expect_access(watched_x, p, sizeof(T));
  T value{};
  if (watched_x.holds(p, sizeof(T))) std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
void checked_store(void* p, T value) {
  expect_access(watched_q, p, sizeof(T));
  if (watched_q.holds(p, sizeof(T))) std::memcpy(p, &value, sizeof(T));
}

}  // namespace octile::emulation

#define OCTILE_EMITTED 1
#include "templates/lib/types.cuh"

namespace cast {
// cvt.rn.satfinite: infinity saturates, unlike the contract's cast.
inline u16 pair(float upper, float lower, octile::DType fp8) {
  const float limit = octile::max_finite(fp8);
  const auto code = [&](float v) -> unsigned {
    return octile::reference::to_fp8(std::isinf(v) ? std::copysign(limit, v) : v, fp8);
  };
  return static_cast<u16>(code(upper) << 8 | code(lower));
}
inline u16 e4m3x2(float upper, float lower) { return pair(upper, lower, octile::DType::kE4M3); }
inline u16 e5m2x2(float upper, float lower) { return pair(upper, lower, octile::DType::kE5M2); }
inline float from_fp16(u16 bits) { return octile::reference::fp16_to_float(bits); }
inline float from_bf16(u16 bits) { return octile::reference::bf16_to_float(bits); }
}  // namespace cast

namespace memory {
struct alignas(16) Words4 {
  u32 word[4];
};
inline Words4 load_16(const void* p) { return octile::emulation::checked_load<Words4>(p); }
inline u32 load_4(const void* p) { return octile::emulation::checked_load<u32>(p); }
inline u32 load_2(const void* p) { return octile::emulation::checked_load<u16>(p); }
inline void store_8(void* p, u32 lower, u32 upper) {
  octile::emulation::checked_store<u64>(p, static_cast<u64>(upper) << 32 | lower);
}
inline void store_4(void* p, u32 value) { octile::emulation::checked_store<u32>(p, value); }
inline void store_1(void* p, u32 value) {
  octile::emulation::checked_store<u8>(p, static_cast<u8>(value));
}
}  // namespace memory

#include "templates/lib/reduce.cuh"
#include "templates/quantize/phases.cuh"

#define V_NAME row_bf16_e4m3
#define V_KERNEL kernel_row_bf16_e4m3
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 3
#define V_TARGET 1
#define V_POW2 false
#define V_EPSILON_BITS 0x0
#define V_ROWS 8
#define V_COLS 256
#define V_THREADS 256
#define V_PER_SM 4
#include "tests/unit/quantize_variant.inc"

#define V_NAME row_bf16_e4m3_short
#define V_KERNEL kernel_row_bf16_e4m3_short
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 3
#define V_TARGET 1
#define V_POW2 false
#define V_EPSILON_BITS 0x0
#define V_ROWS 2
#define V_COLS 256
#define V_THREADS 128
#define V_PER_SM 8
#include "tests/unit/quantize_variant.inc"

#define V_NAME row_bf16_e5m2_epsilon
#define V_KERNEL kernel_row_bf16_e5m2_epsilon
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 3
#define V_TARGET 2
#define V_POW2 false
#define V_EPSILON_BITS 0x3f000000
#define V_ROWS 1
#define V_COLS 256
#define V_THREADS 128
#define V_PER_SM 8
#include "tests/unit/quantize_variant.inc"

#define V_NAME row_bf16_e4m3_pow2_wide
#define V_KERNEL kernel_row_bf16_e4m3_pow2_wide
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 3
#define V_TARGET 1
#define V_POW2 true
#define V_EPSILON_BITS 0x0
#define V_ROWS 4
#define V_COLS 512
#define V_THREADS 256
#define V_PER_SM 4
#include "tests/unit/quantize_variant.inc"

#define V_NAME row_fp16_e5m2_pow2
#define V_KERNEL kernel_row_fp16_e5m2_pow2
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 4
#define V_TARGET 2
#define V_POW2 true
#define V_EPSILON_BITS 0x0
#define V_ROWS 8
#define V_COLS 256
#define V_THREADS 256
#define V_PER_SM 4
#include "tests/unit/quantize_variant.inc"

#define V_NAME row_fp16_e4m3_tall
#define V_KERNEL kernel_row_fp16_e4m3_tall
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 4
#define V_TARGET 1
#define V_POW2 false
#define V_EPSILON_BITS 0x0
#define V_ROWS 16
#define V_COLS 256
#define V_THREADS 256
#define V_PER_SM 2
#include "tests/unit/quantize_variant.inc"

#define V_NAME row_fp32_e4m3
#define V_KERNEL kernel_row_fp32_e4m3
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 5
#define V_TARGET 1
#define V_POW2 false
#define V_EPSILON_BITS 0x0
#define V_ROWS 8
#define V_COLS 128
#define V_THREADS 256
#define V_PER_SM 4
#include "tests/unit/quantize_variant.inc"

#define V_NAME row_fp32_e5m2_pow2_wide
#define V_KERNEL kernel_row_fp32_e5m2_pow2_wide
#define V_BODY "templates/quantize/rowwise_1x128.cu"
#define V_SOURCE 5
#define V_TARGET 2
#define V_POW2 true
#define V_EPSILON_BITS 0x0
#define V_ROWS 4
#define V_COLS 256
#define V_THREADS 256
#define V_PER_SM 4
#include "tests/unit/quantize_variant.inc"

#define V_NAME square_bf16_e4m3
#define V_KERNEL kernel_square_bf16_e4m3
#define V_BODY "templates/quantize/blockwise_128x128.cu"
#define V_SOURCE 3
#define V_TARGET 1
#define V_POW2 false
#define V_EPSILON_BITS 0x0
#define V_ROWS 128
#define V_COLS 128
#define V_THREADS 256
#define V_PER_SM 4
#include "tests/unit/quantize_variant.inc"

#define V_NAME square_bf16_e5m2_pow2_1024
#define V_KERNEL kernel_square_bf16_e5m2_pow2_1024
#define V_BODY "templates/quantize/blockwise_128x128.cu"
#define V_SOURCE 3
#define V_TARGET 2
#define V_POW2 true
#define V_EPSILON_BITS 0x0
#define V_ROWS 128
#define V_COLS 128
#define V_THREADS 1024
#define V_PER_SM 1
#include "tests/unit/quantize_variant.inc"

#define V_NAME square_fp16_e4m3_512
#define V_KERNEL kernel_square_fp16_e4m3_512
#define V_BODY "templates/quantize/blockwise_128x128.cu"
#define V_SOURCE 4
#define V_TARGET 1
#define V_POW2 false
#define V_EPSILON_BITS 0x0
#define V_ROWS 128
#define V_COLS 128
#define V_THREADS 512
#define V_PER_SM 2
#include "tests/unit/quantize_variant.inc"

#define V_NAME square_fp32_e5m2
#define V_KERNEL kernel_square_fp32_e5m2
#define V_BODY "templates/quantize/blockwise_128x128.cu"
#define V_SOURCE 5
#define V_TARGET 2
#define V_POW2 false
#define V_EPSILON_BITS 0x0
#define V_ROWS 128
#define V_COLS 128
#define V_THREADS 512
#define V_PER_SM 2
#include "tests/unit/quantize_variant.inc"

#define V_NAME square_fp32_e4m3_epsilon
#define V_KERNEL kernel_square_fp32_e4m3_epsilon
#define V_BODY "templates/quantize/blockwise_128x128.cu"
#define V_SOURCE 5
#define V_TARGET 1
#define V_POW2 false
#define V_EPSILON_BITS 0x3f000000
#define V_ROWS 128
#define V_COLS 128
#define V_THREADS 512
#define V_PER_SM 2
#include "tests/unit/quantize_variant.inc"
