// mbarrier: the transaction barrier between TMA and the warps that use its copies. PTX ISA 9.0,
// "Parallel Synchronization and Communication Instructions: mbarrier". An instruction that orders
// other accesses has a "memory" clobber, so that the compiler moves no shared-memory access across
// it.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace mbarrier {

// mbarrier.init.shared::cta.b64 [addr], count;  PTX 7.0, sm_80. One thread calls it. The
// others must not use the barrier before fence_init and a CTA (or cluster) barrier.
__device__ __forceinline__ void init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// fence.mbarrier_init.release.cluster;  PTX 8.0, sm_90. The initialising thread calls it after the
// inits, which it makes visible to the cluster and to the async proxy.
__device__ __forceinline__ void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive.shared::cta.b64 _, [addr];  PTX 8.0, sm_90. It releases at CTA scope. But ptxas
// lets it overtake the thread's reads of shared memory, which TMA may then overwrite: a caller that
// hands memory back makes the arrival depend on the last value read (has_come).
__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// mapa.shared::cluster.u32 + mbarrier.arrive.shared::cluster.b64 _, [addr];  PTX 8.0, sm_90.
// It arrives on the same barrier of CTA `rank` of the cluster (own rank allowed). Release at CTA
// scope is enough to hand a stage back: the thread's reads have returned, and the peer reads
// nothing that it wrote. At cluster scope ptxas would put a MEMBAR.ALL.GPU before every arrival, a
// round trip a K-block (docs/experiments/gemm.md, v2).
__device__ __forceinline__ void arrive_cluster(u32 barrier, u32 rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// mbarrier.arrive.expect_tx.shared::cta.b64 _, [addr], bytes;  PTX 8.0, sm_90. One arrival that
// also announces `bytes` of asynchronous copies. The phase completes once both have come.
__device__ __forceinline__ void arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// mbarrier.test_wait.parity.shared::cta.b64 p, [addr], parity;  PTX 7.1, sm_80. Returns 1 if the
// phase of that parity has completed, else 0. It acquires at CTA scope.
__device__ __forceinline__ u32 test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

// mbarrier.try_wait.parity.shared::cta.b64 p, [addr], parity;  PTX 7.8, sm_90. Suspends the thread
// for a hardware-bounded time. Returns whether the phase of that parity has completed. It acquires
// at CTA scope.
__device__ __forceinline__ bool try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  while (!try_wait(barrier, parity)) {
  }
}

// Waits, unless `completed`, which test returned, is already 1.
__device__ __forceinline__ void wait_unless(u32 completed, u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "setp.ne.u32 done, %2, 0;\n"
      "@done bra over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity), "r"(completed)
      : "memory");
}

}  // namespace mbarrier
