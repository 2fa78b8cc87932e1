// mbarrier on GPUs that lack TMA, which has no transactions and suspends no thread: a wait tests
// until the phase has completed. It has the names of mbarrier.cuh that such kernels use.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace mbarrier {

// mbarrier.init.shared.b64 [addr], count;  PTX 7.0, sm_80. One thread calls it. The others must not
// use the barrier before fence_init and a barrier of the CTA.
__device__ __forceinline__ void init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// The barrier of the CTA behind it makes the initialisation visible.
__device__ __forceinline__ void fence_init() {}

// mbarrier.arrive.shared.b64 state, [addr];  PTX 7.0, sm_80. As in mbarrier.cuh, a caller that
// hands memory back makes the arrival depend on the last value read (has_come).
__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 state;\n"
      "mbarrier.arrive.shared.b64 state, [%0];\n"
      "}" ::"r"(barrier)
      : "memory");
}

// mbarrier.test_wait.parity.shared.b64 p, [addr], parity;  PTX 7.1, sm_80. Returns 1 if the phase
// of that parity has completed, else 0. It acquires at CTA scope.
__device__ __forceinline__ u32 test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  while (test(barrier, parity) == 0) {
  }
}

// Waits, unless `completed`, which test returned, is already 1.
__device__ __forceinline__ void wait_unless(u32 completed, u32 barrier, u32 parity) {
  while (completed == 0) completed = test(barrier, parity);
}

// Other CTAs' barriers and announced bytes belong to clusters and TMA. These are only named, in
// branches of kernels that have those.
__device__ void arrive_cluster(u32 barrier, u32 rank);
__device__ void arrive_expect_tx(u32 barrier, u32 bytes);

}  // namespace mbarrier
