// Instructions of a GEMM's sentry. PTX ISA 9.0, "Half Precision Floating Point Instructions" and
// "Parallel Synchronization and Communication Instructions".
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/types.cuh"
#endif

// fma.rn.bf16x2 d, pair, 0, seen;  PTX 7.0, sm_80. Each half of `seen` becomes NaN if that of
// `pair` is NaN or infinite, and stays as it is otherwise.
__device__ __forceinline__ u32 see_bf16x2(u32 pair, u32 seen) {
  asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(seen) : "r"(pair), "r"(0));
  return seen;
}

// fma.rn.f16x2 d, pair, 0, seen;  PTX 4.2, sm_53. Likewise for fp16.
__device__ __forceinline__ u32 see_fp16x2(u32 pair, u32 seen) {
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(seen) : "r"(pair), "r"(0));
  return seen;
}

// stmatrix.sync.aligned.m8n8.x4.shared.b16 [addr], {r0, r1, r2, r3};  PTX 7.8, sm_90. Lane i gives
// the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrix_x4(u32 address, const u32 (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// red.global.add.u64;  PTX 1.2, sm_60.
__device__ __forceinline__ void add_global_u64(u64* p, u64 value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
}
