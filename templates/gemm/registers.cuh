// Where a matrix unit keeps its sums: in registers, so that a CTA takes no other memory for them.
// tensor_memory.cuh has the same names for the unit that keeps them elsewhere.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/tile.cuh"
#endif

namespace gemm {

using ConsumerRing = Ring;

namespace sums {
__device__ __forceinline__ void take_memory(const SharedMemory&) {}
__device__ __forceinline__ void init_barriers(const SharedMemory&) {}
__device__ __forceinline__ void begin() {}
__device__ __forceinline__ void give_memory_back(const SharedMemory&) {}
}  // namespace sums

}  // namespace gemm
