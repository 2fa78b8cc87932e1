// Copies from global to shared memory that run beside the thread that issues them. PTX ISA 9.0,
// "Data Movement and Conversion Instructions: Asynchronous copy" and "Parallel Synchronization and
// Communication Instructions: mbarrier".
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace cp_async {

// cp.async.cg.shared.global [to], [p], 16;  PTX 7.0, sm_80. It copies 16 bytes past L1. Both
// addresses are 16-byte aligned.
__device__ __forceinline__ void copy_16(u32 to, const void* p) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(p) : "memory");
}

// cp.async.cg.shared.global [to], [p], 16, bytes;  PTX 7.0, sm_80. Likewise the first `bytes` of
// 16; the others become zero. With 0 bytes p may be any address.
__device__ __forceinline__ void copy_16(u32 to, const void* p, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p), "r"(bytes)
               : "memory");
}

// cp.async.mbarrier.arrive.noinc.shared.b64 [addr];  PTX 7.0, sm_80. Arrives on the barrier once
// all copies that this thread has issued are complete. It is one of the arrivals that the barrier
// was initialised for. Who then waits for the barrier sees the copies.
__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace cp_async
