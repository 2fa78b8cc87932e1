// Kernels that follow each other in a stream. PTX ISA 9.0, "Miscellaneous Instructions:
// griddepcontrol". Every launch of ours asks for programmatic serialisation, which is cheaper, and
// leaves it to the kernel to wait for the work before it.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

// griddepcontrol.launch_dependents;  PTX 7.8, sm_90. The next kernel of the stream, where it was
// launched with programmatic serialisation, may start once every CTA has said so or ended. Without
// it, once every CTA has ended.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// The dynamic shared memory of the thread block, 16-byte aligned.
__device__ __forceinline__ u8* dynamic_memory() {
  extern __shared__ __align__(16) u8 dynamic_smem[];
  return dynamic_smem;
}

// griddepcontrol.wait;  PTX 7.8, sm_90. Until the kernels this one may overlap have ended and what
// they wrote is visible: before it no memory that another kernel may write is read and none that
// another may read is written. (To ask for some into L2 is neither.)
// Returns at once in an ordinary launch.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
