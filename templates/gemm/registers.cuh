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

namespace sums {
__device__ __forceinline__ void take_memory(const SharedMemory&) {}
__device__ __forceinline__ void init_barriers(const SharedMemory&) {}
__device__ __forceinline__ void begin() {}
__device__ __forceinline__ void give_memory_back(const SharedMemory&) {}
}  // namespace sums

}  // namespace gemm
