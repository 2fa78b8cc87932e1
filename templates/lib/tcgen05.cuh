// tcgen05: the tensor core of compute capability 10.x, which one thread drives and whose sums lie
// in tensor memory: 128 lanes of 512 columns of 32 bits for an SM. PTX ISA 8.6, "TensorCore 5th
// Generation Family Instructions"; sm_100a, sm_103a. An address of tensor memory has the lane in
// its upper half and the column in its lower.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace tcgen05 {

// Element types of operands, as the instruction descriptor spells them.
enum Element : int { kE4M3 = 0, kE5M2 = 1 };

// tcgen05.alloc; tcgen05.relinquish_alloc_permit. A whole warp. Takes columns, a power of two from
// 32 to 512, and writes their address to shared memory at `to`. It waits until they are free.
__device__ __forceinline__ void allocate(u32 to, u32 columns) {
  asm volatile(
      "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;\n"
      "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::"r"(to),
      "r"(columns)
      : "memory");
}

// tcgen05.dealloc. A whole warp, once nothing uses the columns. A CTA gives back all that it took.
__device__ __forceinline__ void release(u32 address, u32 columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns)
               : "memory");
}

// tcgen05.fence::before_thread_sync, ::after_thread_sync. Accesses to tensor memory by two threads
// are ordered if the first executes fence_before() behind its own, both synchronise, and the second
// then executes fence_after().
__device__ __forceinline__ void fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// tcgen05.commit. One arrival at the CTA's mbarrier once all products that this thread has issued
// are complete. It implies fence_before().
__device__ __forceinline__ void commit(u32 barrier) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
      : "memory");
}

// The same for the mbarrier at that place of each CTA in `mask`. PTX ISA, tcgen05.commit.
__device__ __forceinline__ void commit_multicast(u32 barrier, u16 mask) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
      "[%0], %1;" ::"r"(barrier),
      "h"(mask)
      : "memory");
}

// tcgen05.mma, kind::f8f6f4. One thread. D[M,N] = A[M,32] * B[N,32]^T, onto D's old sums unless
// `adds` is 0. `a` and `b` are the low halves of descriptors of shared memory, `high` is the high
// half of both, and `instruction` has M, N and the types. It is asynchronous. Products of one D and
// one shape are done in the order of their issue.
__device__ __forceinline__ void multiply(u32 d, u32 a, u32 b, u32 high, u32 instruction, u32 adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      ".reg .b64 a, b;\n"
      "setp.ne.b32 adds, %5, 0;\n"
      "mov.b64 a, {%1, %3};\n"
      "mov.b64 b, {%2, %3};\n"
      "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], a, b, %4, adds;\n"
      "}" ::"r"(d),
      "r"(a), "r"(b), "r"(high), "r"(instruction), "r"(adds)
      : "memory");
}

// tcgen05.cp.32x128b.warpx4. One thread. Copies 32 rows of 16 bytes of shared memory, whose
// descriptor is {low, high}, to four columns from `to` on: row i to lane i of each quarter of the
// lanes. It is asynchronous. Products that this thread issues behind it are done behind it; those
// that it has issued before may still read the columns.
__device__ __forceinline__ void copy_to_quarters(u32 to, u32 low, u32 high) {
  asm volatile(
      "{\n"
      ".reg .b64 from;\n"
      "mov.b64 from, {%1, %2};\n"
      "tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], from;\n"
      "}" ::"r"(to),
      "r"(low), "r"(high)
      : "memory");
}

// tcgen05.mma, kind::mxf8f6f4. As multiply(), but M is 128, and every product is multiplied by two
// scales, which are E8M0 codes in tensor memory: that of its row of A from the columns at
// `scales_a` on, and that of its column of D from those at `scales_b` on. Row r has a byte of the
// word in lane r % 32 of column r / 32, and `instruction` says which.
__device__ __forceinline__ void multiply_scaled(u32 d, u32 a, u32 b, u32 high, u32 instruction,
                                                u32 scales_a, u32 scales_b, u32 adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      ".reg .b64 a, b;\n"
      "setp.ne.b32 adds, %7, 0;\n"
      "mov.b64 a, {%1, %3};\n"
      "mov.b64 b, {%2, %3};\n"
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], a, b, %4, [%5], "
      "[%6], adds;\n"
      "}" ::"r"(d),
      "r"(a), "r"(b), "r"(high), "r"(instruction), "r"(scales_a), "r"(scales_b), "r"(adds)
      : "memory");
}

// tcgen05.ld.16x256b. A whole warp, of 16 of the 32 lanes of tensor memory that are its own: those
// from 32 * (warp % 4) on. A thread has the same elements as of WGMMA's sums: 4 * j + {0, 1} is
// lane (thread's lane) / 4, columns 8 * j + 2 * (lane % 4) and the next; 4 * j + {2, 3} is the same
// of 8 lanes further. The values are there after wait_loads().
__device__ __forceinline__ void load(float (&d)[8], u32 address) {
  asm volatile("tcgen05.ld.sync.aligned.16x256b.x2.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
                 "=f"(d[7])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load(float (&d)[16], u32 address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, [%16];"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15])
      : "r"(address)
      : "memory");
}

// tcgen05.wait::ld. The values of all loads of this thread are there. They pass through, so that no
// use of them moves before it.
template <int kCount>
__device__ __forceinline__ void wait_loads(float (&d)[kCount]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace tcgen05
