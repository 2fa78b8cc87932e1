// Runs the text of a kernel template on the host, one thread block or cluster at a time. Every CUDA
// thread is a fiber, so that barriers and shuffles meet as on the device. This proves indexing,
// bounds and arithmetic without a GPU. It does not prove speed, memory order or the PTX wrappers,
// which it replaces.
//
// Use: include this file, then the templates inside a namespace of the test. Sanitizer builds
// cannot use it (fibers.h).
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/fibers.h"

namespace octile::emulation {

struct Dim {
  unsigned x = 0;
  unsigned y = 0;
};

// Runs `body` once for each of `threads` threads of block `index` of a grid of `blocks`. Either all
// threads that a barrier or a warp operation waits for must arrive, or none. A deadlock aborts the
// test with a message.
void run_block(unsigned index, int threads, const std::function<void()>& body, unsigned blocks = 1);

// Does the same for blocks that run together. Returns what all threads wait for, if they wait for
// ever.
std::string run_blocks_together(const Blocks& blocks, const std::function<void()>& body,
                                Surroundings& surroundings);

// The input of a warp operation: the values of all 32 lanes, and the caller's lane.
struct WarpValues {
  const std::uint32_t* values = nullptr;
  unsigned lane = 0;
};
WarpValues exchange(std::uint32_t value);  // called by all 32 lanes; valid until each has read
void release();                            // ends what exchange() began
void block_barrier();
void wait_for_preceding_kernel();

// The end of the preceding kernel, for a kernel that asks for it.
extern Wait preceding_kernel;

extern Dim current_thread;
extern Dim current_block;
extern Dim current_grid;

}  // namespace octile::emulation

// ---- the language of a template -----------------------------------------------------------------
// NOLINTBEGIN: these names are CUDA's.
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define threadIdx (::octile::emulation::current_thread)
#define blockIdx (::octile::emulation::current_block)
#define gridDim (::octile::emulation::current_grid)

inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __frcp_rn(float a) { return 1.0F / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frsqrt_rn(float a) { return static_cast<float>(1 / std::sqrt(double{a})); }
inline std::size_t __cvta_generic_to_shared(const void* p) {
  return reinterpret_cast<std::size_t>(p);
}

// lib/launch.cuh
inline void wait_for_previous_kernel() { octile::emulation::wait_for_preceding_kernel(); }
inline void let_next_kernel_start() {}
inline void wait_and_let_next_start() { wait_for_previous_kernel(); }
// Returns the memory of the block that runs; it still holds the bytes that the previous block left
// there.
unsigned char* dynamic_memory();

// Selector nibbles pick bytes of b:a, the lowest first.
inline std::uint32_t __byte_perm(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t byte = selector >> 4 * i & 7U;
    result |= static_cast<std::uint32_t>(both >> 8 * byte & 0xFFU) << 8 * i;
  }
  return result;
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const auto all = octile::emulation::exchange(std::bit_cast<std::uint32_t>(value));
  const T result = std::bit_cast<T>(all.values[all.lane ^ static_cast<unsigned>(mask)]);
  octile::emulation::release();
  return result;
}
template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  const auto all = octile::emulation::exchange(std::bit_cast<std::uint32_t>(value));
  const T result = std::bit_cast<T>(all.values[source % 32]);
  octile::emulation::release();
  return result;
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int distance) {
  const auto all = octile::emulation::exchange(std::bit_cast<std::uint32_t>(value));
  const auto lane = static_cast<int>(all.lane);
  const T result = std::bit_cast<T>(all.values[lane < distance ? lane : lane - distance]);
  octile::emulation::release();
  return result;
}
inline std::uint32_t __reduce_max_sync(unsigned, std::uint32_t value) {
  const auto all = octile::emulation::exchange(value);
  std::uint32_t top = 0;
  for (int i = 0; i < 32; ++i) top = all.values[i] > top ? all.values[i] : top;
  octile::emulation::release();
  return top;
}
inline std::uint32_t __reduce_add_sync(unsigned, std::uint32_t value) {
  const auto all = octile::emulation::exchange(value);
  std::uint32_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += all.values[i];
  octile::emulation::release();
  return sum;
}
inline int __any_sync(unsigned, int predicate) {
  return __reduce_max_sync(0, predicate != 0 ? 1U : 0U) != 0 ? 1 : 0;
}
// Needs no atomic operation, because threads of a block take turns only at barriers and warp
// operations.
inline std::uint32_t atomicMax(std::uint32_t* p, std::uint32_t value) {
  const std::uint32_t old = *p;
  if (value > old) *p = value;
  return old;
}
template <typename T>
T atomicAdd(T* p, T value) {
  const T old = *p;
  *p += value;
  return old;
}
inline void __threadfence() {}
inline void __syncwarp() { octile::emulation::release(); }
inline void __syncthreads() { octile::emulation::block_barrier(); }
// NOLINTEND
