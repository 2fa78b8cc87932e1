// Names every library file uses. Sources are header-free: no CUDA or standard header is included,
// so that a cold compile costs what the kernel costs.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// CUtensorMap: 128 opaque bytes, 64-byte aligned, passed as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// Shared-memory addresses as the 32-bit window PTX's .shared operands take.
__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// The same value, of which the compiler no longer knows where it came from: what was derived from
// it before is derived again instead of kept in registers. No instruction.
__device__ __forceinline__ i64 hide_from_optimizer(i64 value) {
  asm volatile("" : "+l"(value));
  return value;
}
__device__ __forceinline__ u32 hide_from_optimizer(u32 value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ int hide_from_optimizer(int value) {
  return static_cast<int>(hide_from_optimizer(static_cast<u32>(value)));
}

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }
