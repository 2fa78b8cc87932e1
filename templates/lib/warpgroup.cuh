// Warps and warpgroups: roles, registers, barriers.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

// setmaxnreg.dec.sync.aligned.u32 N;  PTX 8.0, sm_90a. All threads of a warpgroup execute it, in
// one branch for each role. The kernel needs __launch_bounds__ (otherwise ptxas warns with C7508).
// N is a multiple of 8 in 24..256.
template <int kRegisters>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// setmaxnreg.inc.sync.aligned.u32 N;  PTX 8.0, sm_90a. It waits until the pool holds enough.
template <int kRegisters>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// bar.sync id, threads;  PTX 1.0. A named barrier among `threads` threads, a multiple of 32. Id 0
// is that of __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// elect.sync _|p, mask;  PTX 8.0, sm_90. Returns true in one lane of a converged warp.
__device__ __forceinline__ bool elect_one() {
  u32 elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// cvt.rn.bf16x2.f32 r, hi, lo (4 of them); stmatrix.sync.aligned.m8n8.x4.shared.b16 [addr], {r0,
// r1, r2, r3};  PTX 7.8, sm_90. Lane i gives the address of row i % 8 of matrix i / 8 (16 bytes,
// 16-byte aligned). Values 2 * j and 2 * j + 1 of a lane are two elements of row lane / 4 of matrix
// j, in columns 2 * (lane % 4) and the next, rounded to nearest even. It is one asm statement,
// because five cost NVRTC more.
__device__ __forceinline__ void store_matrix_bf16_x4(u32 address, const float* v) {
  asm volatile(
      "{\n"
      ".reg .b32 r<4>;\n"
      "cvt.rn.bf16x2.f32 r0, %2, %1;\n"
      "cvt.rn.bf16x2.f32 r1, %4, %3;\n"
      "cvt.rn.bf16x2.f32 r2, %6, %5;\n"
      "cvt.rn.bf16x2.f32 r3, %8, %7;\n"
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {r0, r1, r2, r3};\n"
      "}" ::"r"(address),
      "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7])
      : "memory");
}

// cvt.rn.bf16x2.f32 d, hi, lo;  PTX 7.8, sm_80. Converts two fp32 to bf16, to nearest even, `hi`
// into the upper half.
__device__ __forceinline__ u32 pack_bf16x2(float lo, float hi) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

// ld.volatile.shared.f32;  PTX 1.0. ptxas keeps the order of volatile reads, so the last of them in
// the source comes last (release_stage).
__device__ __forceinline__ float load_shared_f32(u32 address) {
  float value;
  asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// ld.shared.s32, st.shared.s32, ld.global.s32;  PTX 1.0.
__device__ __forceinline__ int load_shared_i32(u32 address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared_i32(u32 address, int value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ int load_global_i32(const int* p) {
  int value;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

// setp.geu.f32;  PTX 2.0. Returns true, because a magnitude is at least 0 or it is NaN. The result
// is there only once x is, which ptxas sees.
__device__ __forceinline__ bool has_come(float x) {
  u32 yes;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      ".reg .f32 magnitude;\n"
      "abs.f32 magnitude, %1;\n"
      "setp.geu.f32 p, magnitude, 0f00000000;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(yes)
      : "f"(x));
  return yes != 0;
}

// st.shared.f32;  PTX 1.0.
__device__ __forceinline__ void store_shared_f32(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// @condition ld.global.nc.f32 d, [p];  PTX 3.1, sm_32. Returns 0 without reading p if the
// condition is false. It is for memory that nothing writes while the kernel runs.
__device__ __forceinline__ float load_f32_if(const float* p, bool condition) {
  float value;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "mov.f32 %0, 0f00000000;\n"
      "@p ld.global.nc.f32 %0, [%1];\n"
      "}"
      : "=f"(value)
      : "l"(p), "r"(static_cast<int>(condition)));
  return value;
}

struct alignas(16) Floats4 {
  float value[4];
};

// ld.volatile.shared.v4.f32;  PTX 1.0. The address is 16-byte aligned. As load_shared_f32.
__device__ __forceinline__ Floats4 load_shared_16(u32 address) {
  Floats4 v;
  asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.value[0]), "=f"(v.value[1]), "=f"(v.value[2]), "=f"(v.value[3])
               : "r"(address)
               : "memory");
  return v;
}

// st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [addr], {a, b, c, d}, [mbar];
// PTX 8.1, sm_90. Both addresses are in the same CTA of the cluster. Its barrier counts the 16
// bytes once they are there.
__device__ __forceinline__ void store_async_16(u32 address, float a, float b, float c, float d,
                                               u32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}
