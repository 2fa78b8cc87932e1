// The quantise templates as host code: the wrappers of templates/lib written for the host, then the
// parts that every kernel shares. The sources that emit_sources.cc writes add what the emitter adds
// to each kernel.
#pragma once
// The templates contain pragmas and implicit conversions that only CUDA accepts without a warning.
#pragma GCC system_header

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "generator/core/elementary.h"
#include "runtime/reference/cast.h"
#include "tests/emulation/device_memory.h"
#include "tests/support/device_emulation.h"

namespace cast {
// cvt.rn.satfinite: infinity saturates, unlike in the cast of docs/numerics.md.
inline u16 pair(float upper, float lower, octile::DType fp8) {
  const float limit = octile::max_finite(fp8);
  const auto code = [&](float v) -> unsigned {
    return octile::reference::to_fp8(std::isinf(v) ? std::copysign(limit, v) : v, fp8);
  };
  return static_cast<u16>(code(upper) << 8 | code(lower));
}
inline u16 e4m3x2(float upper, float lower) { return pair(upper, lower, octile::DType::kE4M3); }
inline u16 e5m2x2(float upper, float lower) { return pair(upper, lower, octile::DType::kE5M2); }
inline u32 halves(u16 codes, octile::DType fp8) {
  const auto half = [&](unsigned code) -> u32 {
    return octile::reference::float_to_fp16(
        octile::reference::from_fp8(static_cast<u8>(code), fp8));
  };
  return half(codes >> 8) << 16 | half(codes & 0xFFU);
}
inline u32 from_e4m3x2(u16 codes) { return halves(codes, octile::DType::kE4M3); }
inline u32 from_e5m2x2(u16 codes) { return halves(codes, octile::DType::kE5M2); }
inline u32 to_fp16x2(float upper, float lower) {
  return static_cast<u32>(octile::reference::float_to_fp16(upper)) << 16 |
         octile::reference::float_to_fp16(lower);
}
inline u32 to_bf16x2(float upper, float lower) {
  return static_cast<u32>(octile::reference::float_to_bf16(upper)) << 16 |
         octile::reference::float_to_bf16(lower);
}
inline void round_to_bf16(u32& lower, u32& upper) {
  const u32 both = to_bf16x2(std::bit_cast<float>(upper), std::bit_cast<float>(lower));
  lower = both << 16;
  upper = both & 0xFFFF0000U;
}
inline float from_fp16(u16 bits) { return octile::reference::fp16_to_float(bits); }
inline float from_bf16(u16 bits) { return octile::reference::bf16_to_float(bits); }
}  // namespace cast

namespace arithmetic {
inline float min(float a, float b) { return octile::elementary::min(a, b); }
inline float max(float a, float b) { return octile::elementary::max(a, b); }
template <typename Pick>
u32 of_halves(u32 a, u32 b, Pick pick) {
  return pick(a >> 16, b >> 16) << 16 | pick(a & 0xFFFFU, b & 0xFFFFU);
}
template <u32 kInfinity>
u32 larger_halves(u32 a, u32 b) {
  return of_halves(a, b, [](u32 x, u32 y) {
    const u32 larger = std::max(x & 0x7fffU, y & 0x7fffU);
    return larger > kInfinity ? 0x7fffU : larger | ((x ^ y) & 0x8000U);
  });
}
inline u32 larger_bf16x2(u32 a, u32 b) { return larger_halves<0x7f80>(a, b); }
inline u32 larger_fp16x2(u32 a, u32 b) { return larger_halves<0x7c00>(a, b); }
inline u32 min_u16x2(u32 a, u32 b) {
  return of_halves(a, b, [](u32 x, u32 y) { return std::min(x, y); });
}
inline u32 max_u16x2(u32 a, u32 b) {
  return of_halves(a, b, [](u32 x, u32 y) { return std::max(x, y); });
}
// The device refines its instruction's result to that of __frcp_rn, which is correctly rounded.
inline float near_reciprocal(float a) { return 1.0F / a; }
}  // namespace arithmetic

// lib/cluster.cuh for quantisers. The blocks of a cluster share the one copy that the host has of a
// __shared__ variable, so a store into every block's copy is one store.
namespace octile::emulation {
inline FiberBarrier cluster_barrier;
inline int cluster_threads = 0;  // of all blocks that run together
namespace quantizers {
inline u32 cluster_rank() { return blockIdx.x; }
inline void cluster_arrive() {}
inline void cluster_wait() {}
inline void cluster_sync_memory() { cluster_barrier.wait(cluster_threads, "the cluster"); }
inline void store_in_cluster_4(u32* p, u32 /*rank*/, u32 value) { *p = value; }
}  // namespace quantizers
}  // namespace octile::emulation

// The files are included in the emitter's order: each uses those before it.
// clang-format off
#include "templates/lib/reduce.cuh"
#include "templates/quantize/elements.cuh"
#include "templates/quantize/patch.cuh"
#include "templates/quantize/first_pass.cuh"
#include "templates/quantize/scale.cuh"
#include "templates/quantize/ordered_scales.cuh"
#include "templates/quantize/codes.cuh"
#include "templates/quantize/columns.cuh"
#include "templates/quantize/groups.cuh"
#include "templates/quantize/range.cuh"
#include "templates/quantize/pieces.cuh"
#include "templates/lib/math.cuh"
#include "templates/lib/normal.cuh"
#include "templates/quantize/fused_table.cuh"
#include "templates/quantize/fused_values.cuh"
#include "templates/quantize/fused.cuh"
#include "templates/quantize/scaled.cuh"
#include "templates/quantize/bias.cuh"
#include "templates/quantize/norm.cuh"
#include "templates/quantize/layer_norm.cuh"
// clang-format on

namespace octile::emulation {

using QuantizeKernel = void (*)(const quantize::Args);

// One emitted kernel.
struct EmittedQuantizer {
  const char* problem = "";  // canonical text
  const char* config = "";
  QuantizeKernel kernel = nullptr;
  // Companions in the order of their enumeration; null: none.
  QuantizeKernel first_pass = nullptr;
  void (*scale_update)(const void* args) = nullptr;
  QuantizeKernel row_norm = nullptr;
  QuantizeKernel bias_sum = nullptr;
  QuantizeKernel scale_order = nullptr;
  void (*fingerprint)(const void* args) = nullptr;
  // The kernel if it is of pieces; `kernel` is then null.
  void (*pieces)(const quantize::PiecesArgs) = nullptr;
  // The kernel and its first pass if they are of stacked tensors; the others are then null.
  void (*stack)(const quantize::StackArgs) = nullptr;
  void (*stack_first_pass)(const quantize::StackArgs) = nullptr;
};

// Returns all kernels that emit_sources.cc wrote.
std::span<const EmittedQuantizer> emitted_quantizers();

}  // namespace octile::emulation
