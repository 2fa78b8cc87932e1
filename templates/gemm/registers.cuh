// The sums of wgmma and mma are in registers, so that a CTA allocates no other memory for them.
// tensor_memory.cuh has the same names for tcgen05, whose sums are in tensor memory.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm {

enum : int {
  // Rows from a warp's first to the next warp's, and from a warp's rows of a strip to those of the
  // next strip: a strip is 64 rows, 16 of each warp.
  kWarpRows = 16,
  kStripStep = 64,
};

using ConsumerRing = Ring;

// Two fp32 operations, which lib/f32x2.cuh does by one instruction.
namespace two {
__device__ __forceinline__ void add(float& x, float& y, float a, float b) {
  x = __fadd_rn(x, a);
  y = __fadd_rn(y, b);
}
__device__ __forceinline__ void multiply_add(float& x, float& y, float a, float b, float u,
                                             float v) {
  x = __fmaf_rn(a, u, x);
  y = __fmaf_rn(b, v, y);
}
__device__ __forceinline__ void multiply_add_scaled(float& x, float& y, float a, float b,
                                                    float scale, float u, float v) {
  x = __fmaf_rn(a, __fmul_rn(scale, u), x);
  y = __fmaf_rn(b, __fmul_rn(scale, v), y);
}
}  // namespace two

namespace sums {

// A stage's arrivals at `empty` from each CTA that reads it: one of each consumer warp. Consumers
// issue their products themselves.
enum : int { kReleases = 4 * cfg::kConsumerWarpgroups, kHasIssuer = false };
template <typename Walk>
__device__ __forceinline__ void issue(const SharedMemory&, const Extents&, int) {}

__device__ __forceinline__ void take_memory(const SharedMemory&) {}
__device__ __forceinline__ void init_barriers(const SharedMemory&) {}
__device__ __forceinline__ void begin() {}
__device__ __forceinline__ void give_memory_back(const SharedMemory&) {}

}  // namespace sums

}  // namespace gemm
