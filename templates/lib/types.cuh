// Names that every library file uses. Kernels include no CUDA or standard header, so that a cold
// compile costs no more than the kernel.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// The largest finite values of the FP8 types.
constexpr float kMaxE4M3 = 448.0f;
constexpr float kMaxE5M2 = 57344.0f;

// CUtensorMap: 128 opaque bytes, 64-byte aligned, passed as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// Returns a shared-memory address in the 32-bit form of PTX's .shared operands.
__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// Returns the value, of which the compiler then no longer knows the origin. So it recomputes what
// it derived from the value before, instead of keeping it in registers. No instruction is emitted.
__device__ __forceinline__ i64 hide_from_optimizer(i64 value) {
  asm volatile("" : "+l"(value));
  return value;
}
__device__ __forceinline__ u32 hide_from_optimizer(u32 value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ const char* hide_from_optimizer(const char* value) {
  asm volatile("" : "+l"(value));
  return value;
}
__device__ __forceinline__ int hide_from_optimizer(int value) {
  return static_cast<int>(hide_from_optimizer(static_cast<u32>(value)));
}

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }
