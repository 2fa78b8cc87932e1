// Programmatic dependent launch: kernels that follow each other in a stream. PTX ISA 9.0,
// "Miscellaneous Instructions: griddepcontrol". Every launch of the library asks for programmatic
// serialisation, which is cheaper. So every kernel must itself wait for the work before it.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

// griddepcontrol.launch_dependents;  PTX 7.8, sm_90. If the next kernel of the stream was launched
// with programmatic serialisation, it may start once every CTA has executed this or ended. Without
// this instruction it may start once every CTA has ended.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Returns the dynamic shared memory of the thread block, 16-byte aligned.
__device__ __forceinline__ u8* dynamic_memory() {
  extern __shared__ __align__(16) u8 dynamic_smem[];
  return dynamic_smem;
}

// griddepcontrol.wait;  PTX 7.8, sm_90. Waits until the kernels that this one may overlap have
// ended and their writes are visible. Before it a kernel must not read memory that another kernel
// may write, nor write memory that another may read. A prefetch into L2 is neither. In an ordinary
// launch it returns at once.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Waits for the kernels before, then lets the next kernel of the stream start beside this one.
// Behind the wait, because the next kernel may rely on all work before this one.
__device__ __forceinline__ void wait_and_let_next_start() {
  wait_for_previous_kernel();
  let_next_kernel_start();
}
