// Global loads and stores of one thread. PTX ISA 9.0, "Data Movement and Conversion Instructions:
// ld, ld.global.nc, st". Loads are for memory that nothing writes while the kernel runs, so they
// need no "memory" clobber. They are volatile to keep their order in the source, so that many are
// in flight. A store's clobber keeps it behind the loads that it might alias.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

namespace memory {

struct alignas(16) Words4 {
  u32 word[4];
};
struct alignas(8) Words2 {
  u32 word[2];
};

// ld.global.nc.v4.u32 {a, b, c, d}, [p];  PTX 3.1, sm_32. p 16-byte aligned. It lacks
// L1::no_allocate, with which a stream that reads twice what it writes takes 89.6 instead of 82.7
// us on an H200 (16384x7168).
__device__ __forceinline__ Words4 load_16(const void* p) {
  Words4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p));
  return v;
}

// ld.global.v4.u32 {a, b, c, d}, [p];  PTX 1.0, any SM. p 16-byte aligned. It is for memory that
// this thread block writes afterwards, or that the preceding kernel wrote before
// griddepcontrol.wait. ptxas moves an .nc load to before that wait, which gave wrong maxima.
__device__ __forceinline__ Words4 reread_16(const void* p) {
  Words4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p)
               : "memory");
  return v;
}

// ld.global.nc.v2.u32 {a, b}, [p];  PTX 3.1, sm_32. p 8-byte aligned.
__device__ __forceinline__ Words2 load_8(const void* p) {
  Words2 v;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(p));
  return v;
}

// ld.global.nc.u32 d, [p];  PTX 3.1, sm_32. p 4-byte aligned. It keeps its line in L1, because its
// neighbours are loaded next.
__device__ __forceinline__ u32 load_4(const void* p) {
  u32 v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// ld.global.u32 d, [p];  PTX 1.0, sm_10. p 4-byte aligned. It is for memory that other threads
// raise meanwhile, or have raised (see reread_16). The value in an SM's L1 stays as it was, so
// thousands of warps that read one word do not wait for each other in L2.
__device__ __forceinline__ u32 glance_4(const void* p) {
  u32 v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

// ld.global.nc.u16 d, [p];  PTX 3.1, sm_32. p 2-byte aligned.
__device__ __forceinline__ u32 load_2(const void* p) {
  u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}

// ld.global.nc.u8 d, [p];  PTX 3.1, sm_32.
__device__ __forceinline__ u32 load_1(const void* p) {
  u16 v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}

// cp.async.cg.shared.global [to], [p], 16;  PTX 7.0, sm_80. `to` and p 16-byte aligned. It copies
// past L1 into shared memory that only this thread reads, after wait_copies. It does nothing unless
// `wanted`.
__device__ __forceinline__ void copy_16(Words4* to, const void* p, bool wanted) {
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}" ::"r"(address),
      "l"(p), "r"(static_cast<u32>(wanted))
      : "memory");
}

// cp.async.commit_group;  PTX 7.0, sm_80. Closes the group of this thread's copies so far.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

// cp.async.wait_group N;  PTX 7.0, sm_80. Waits until at most this thread's last N groups are
// pending. The thread may then read what the other groups copied.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// st.global.v4.u32 [p], {a, b, c, d};  PTX 1.0, any SM. p 16-byte aligned.
__device__ __forceinline__ void store_16(void* p, const Words4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

// st.global.v2.u32 [p], {a, b};  PTX 1.0, any SM. p 8-byte aligned.
__device__ __forceinline__ void store_8(void* p, u32 lower, u32 upper) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(lower), "r"(upper) : "memory");
}

// st.global.u32 [p], a;  PTX 1.0, any SM. p 4-byte aligned.
__device__ __forceinline__ void store_4(void* p, u32 value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// st.global.u16 [p], a;  PTX 1.0, any SM. p 2-byte aligned. Stores the low half of `value`.
__device__ __forceinline__ void store_2(void* p, u32 value) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(static_cast<u16>(value)) : "memory");
}

// st.global.u8 [p], a;  PTX 1.0, any SM. Stores the low byte of `value`.
__device__ __forceinline__ void store_1(void* p, u32 value) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

}  // namespace memory
