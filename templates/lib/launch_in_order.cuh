// Kernels that follow each other in a stream, on GPUs without programmatic dependent launch. It has
// the names of launch.cuh. Launches there are ordinary ones, so a kernel starts when those before
// it have ended and their writes are visible: nothing is left to wait for.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

__device__ __forceinline__ void let_next_kernel_start() {}

// Returns the dynamic shared memory of the thread block, 16-byte aligned.
__device__ __forceinline__ u8* dynamic_memory() {
  extern __shared__ __align__(16) u8 dynamic_smem[];
  return dynamic_smem;
}

__device__ __forceinline__ void wait_for_previous_kernel() {}

__device__ __forceinline__ void wait_and_let_next_start() {}
