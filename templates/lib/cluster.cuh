// Clusters of CTAs: ranks, barriers, each other's shared memory.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

// mov.u32 r, %cluster_ctarank;  PTX 7.8, sm_90.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// barrier.cluster.arrive.relaxed.aligned;  PTX 7.8, sm_90. All threads of all CTAs of the cluster
// execute it, and each then waits or ends. It is relaxed: it orders execution (barriers are
// initialised, peers still exist) but not ordinary memory. mbarrier::fence_init orders the
// initialisation itself.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// barrier.cluster.wait.acquire.aligned;  PTX 7.8, sm_90. It waits until all threads have arrived or
// ended.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;  PTX 7.8, sm_90.
// Behind it every thread of the cluster sees what all of them wrote before.
__device__ __forceinline__ void cluster_sync_memory() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// mapa.shared::cluster.u32 d, a, rank;  PTX 7.8, sm_90. Returns the address of the same offset in
// the shared memory of CTA `rank`.
__device__ __forceinline__ u32 cluster_address(u32 address, u32 rank) {
  u32 remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

// mapa.shared::cluster.u32; st.shared::cluster.u32;  PTX 7.8, sm_90. Stores a word at p's place in
// the shared memory of CTA `rank`, which must have started and not ended.
__device__ __forceinline__ void store_in_cluster_4(u32* p, u32 rank, u32 value) {
  const u32 remote = cluster_address(static_cast<u32>(__cvta_generic_to_shared(p)), rank);
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote), "r"(value) : "memory");
}
