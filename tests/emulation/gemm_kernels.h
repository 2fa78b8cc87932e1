// The wrappers of templates/lib that a GEMM kernel uses, written for the host. The sources that
// emit_gemm_sources.cc writes include this file and add the emitter's text. A wrapper that a new
// policy uses is added here; what it does to the cluster is a function of cluster*.h.
#pragma once
// The templates contain pragmas and implicit conversions that only CUDA accepts without a warning.
#pragma GCC system_header

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

#include "runtime/reference/cast.h"
#include "tests/emulation/cluster.h"
#include "tests/emulation/cluster_copies.h"
#include "tests/emulation/cluster_mma.h"
#include "tests/emulation/cluster_wgmma.h"
#include "tests/emulation/device_memory.h"

// The kernel's shared memory: an address that only shared_address() reads.
#define OCTILE_TILE_MEMORY \
  reinterpret_cast<u8*>(static_cast<std::uintptr_t>(::octile::emulation::kSharedBase))

constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr int max(int a, int b) { return a < b ? b : a; }
constexpr i64 min(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 max(i64 a, i64 b) { return a < b ? b : a; }
inline u32 __umulhi(u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }

namespace mbarrier {
inline void init(u32 barrier, u32 count) {
  octile::emulation::cluster->init_barrier(barrier, count);
}
inline void fence_init() { octile::emulation::cluster->show_barriers(); }
// A lane that arrives for its warp does not fall behind the other lanes here: on the hardware they
// meet again behind the branch.
inline void arrive(u32 barrier) {
  octile::emulation::tensor_arrives(barrier);
  octile::emulation::cluster->arrive(barrier);
}
inline void arrive_expect_tx(u32 barrier, u32 bytes) {
  octile::emulation::cluster->arrive(barrier, bytes);
  octile::emulation::cluster->maybe_yield();
}
inline u32 test(u32 barrier, u32 parity) {
  return octile::emulation::cluster->barrier(barrier).phase % 2 != parity ? 1 : 0;
}
inline void wait(u32 barrier, u32 parity) {
  const auto& b = octile::emulation::cluster->barrier(barrier);
  if (b.phase % 2 == parity)
    octile::emulation::wait_until({&b.phase, b.phase + 1, "the mbarrier at", barrier});
  octile::emulation::tensor_has_waited(barrier);
}
inline bool try_wait(u32 barrier, u32 parity) {
  wait(barrier, parity);
  return true;
}
inline void wait_unless(u32 completed, u32 barrier, u32 parity) {
  if (completed == 0) wait(barrier, parity);
}
}  // namespace mbarrier

namespace tma {
inline void prefetch_map(const TensorMap* map) { octile::emulation::look_at_map(map); }
inline void prefetch_2d(const TensorMap* map, int, int) { octile::emulation::look_at_map(map); }
inline void load_2d(u32 dst, const TensorMap* map, int x, int y, u32 barrier) {
  octile::emulation::load_box(dst, map, {x, y}, barrier, octile::emulation::kOwnRank);
}
inline void load_2d_multicast(u32 dst, const TensorMap* map, int x, int y, u32 barrier, u16 mask) {
  octile::emulation::load_box(dst, map, {x, y}, barrier, mask);
}
inline void load_bulk(u32 dst, const void* src, u32 bytes, u32 barrier) {
  octile::emulation::load_bytes(dst, src, bytes, barrier, octile::emulation::kOwnRank);
}
inline void load_bulk_multicast(u32 dst, const void* src, u32 bytes, u32 barrier, u16 mask) {
  octile::emulation::load_bytes(dst, src, bytes, barrier, mask);
}
inline void store_2d(const TensorMap* map, int x, int y, u32 src) {
  octile::emulation::store_box(map, {x, y}, src);
}
inline void commit_stores() { octile::emulation::commit_store_group(); }
template <int kPending>
void wait_stores_read() {
  octile::emulation::wait_store_groups_read(kPending);
}
// A lane may fall behind the others of its warp here, before its writes are fenced.
inline void fence_async_shared() {
  octile::emulation::cluster->maybe_yield();
  octile::emulation::cluster->fence();
}
}  // namespace tma

// ---- lib/cp_async.cuh ---------------------------------------------------------------------------

namespace cp_async {
inline void copy_16(u32 to, const void* p) { octile::emulation::copy_async(to, p, 16); }
inline void copy_16(u32 to, const void* p, u32 bytes) {
  octile::emulation::copy_async(to, p, bytes);
}
inline void arrive(u32 barrier) { octile::emulation::arrive_behind_copies(barrier); }
}  // namespace cp_async

// ---- lib/warpgroup.cuh --------------------------------------------------------------------------

template <int kRegisters>
void release_registers() {
  octile::emulation::cluster->own_block().registers += kRegisters;
}
template <int kRegisters>
void acquire_registers() {
  octile::emulation::cluster->own_block().registers += kRegisters;
}
inline void named_barrier(int id, int threads) {
  auto& barrier = octile::emulation::cluster->own_block().named[id % 16];
  const u32 generation = barrier.generation;
  octile::emulation::tensor_meets(id, generation);
  barrier.wait(threads, "bar.sync", static_cast<u32>(id));
  octile::emulation::tensor_has_met(id, generation);
}
// The barriers of a block and of a warp, by the names that kernels give them.
#define __syncthreads ::octile::emulation::tensor_block_barrier
#define __syncwarp ::octile::emulation::tensor_warp_barrier
inline bool elect_one() {
  octile::emulation::release();
  return threadIdx.x % 32 == octile::emulation::cluster->elected();
}
inline u32 cluster_rank() { return octile::emulation::cluster->rank(); }
inline void cluster_arrive() { octile::emulation::cluster->cluster_arrive(); }
inline void cluster_wait() { octile::emulation::cluster->cluster_wait(); }
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
inline u32 cluster_address(u32 address, u32 rank) {
  return address | (rank + 1) << octile::emulation::kRankShift;
}
namespace mbarrier {
inline void arrive_cluster(u32 barrier, u32 rank) { arrive(cluster_address(barrier, rank)); }
}  // namespace mbarrier
inline void store_async_16(u32 address, float a, float b, float c, float d, u32 barrier) {
  const float values[] = {a, b, c, d};
  octile::emulation::store_floats_async(address, values, barrier);
}

template <typename T>
T load_shared(u32 address) {
  T value;
  std::memset(&value, 0xFF, sizeof value);
  const std::byte* p = octile::emulation::cluster->memory(address, sizeof value, sizeof value);
  if (p != nullptr) std::memcpy(&value, p, sizeof value);
  return value;
}
template <typename T>
void store_shared(u32 address, const T& value) {
  std::byte* p = octile::emulation::cluster->memory(address, sizeof value, sizeof value);
  if (p == nullptr) return;
  std::memcpy(p, &value, sizeof value);
  octile::emulation::cluster->written(address, sizeof value);
}
struct alignas(16) Floats4 {
  float value[4];
};
inline float load_shared_f32(u32 address) { return load_shared<float>(address); }
inline int load_shared_i32(u32 address) {
  octile::emulation::tensor_reads_shared(address);
  return load_shared<int>(address);
}
inline void store_shared_i32(u32 address, int value) { store_shared(address, value); }
inline int load_global_i32(const int* p) { return octile::emulation::checked_load<int>(p); }
inline bool has_come(float) { return true; }
inline Floats4 load_shared_16(u32 address) { return load_shared<Floats4>(address); }
inline void store_shared_f32(u32 address, float value) { store_shared(address, value); }
inline float load_f32_if(const float* p, bool condition) {
  return condition ? octile::emulation::checked_load<float>(p) : 0;
}

inline u32 pack_bf16x2(float lo, float hi) {
  return static_cast<u32>(octile::reference::float_to_bf16(hi)) << 16 |
         octile::reference::float_to_bf16(lo);
}
// stmatrix of four 8x8 matrices: lane i gives the address of row i % 8 of matrix i / 8.
inline void store_matrix_x4(u32 address, const u32 (&pairs)[4]) {
  const auto all = octile::emulation::exchange(address);
  for (unsigned j = 0; j < 4; ++j) {
    const u32 row = all.values[8 * j + all.lane / 4];
    octile::emulation::cluster->check(row % 16 == 0, "stmatrix of a misaligned row", row);
    store_shared(row + 4 * (all.lane % 4), pairs[j]);
  }
  octile::emulation::release();
}
// ---- lib/sentry.cuh
// ------------------------------------------------------------------------------

// NaN in each half whose exponent in `pair` is all ones, as the products of zero are.
inline u32 see_pair(u32 pair, u32 seen, u32 infinity) {
  for (const u32 shift : {0U, 16U}) {
    const u32 old = seen >> shift & 0xFFFF, bits = pair >> shift & 0xFFFF;
    const bool finite = (bits & infinity) != infinity;
    seen = (seen & ~(0xFFFFU << shift)) | (finite ? old : 0x7FFFU) << shift;
  }
  return seen;
}
inline u32 see_bf16x2(u32 pair, u32 seen) { return see_pair(pair, seen, 0x7F80); }
inline u32 see_fp16x2(u32 pair, u32 seen) { return see_pair(pair, seen, 0x7C00); }
inline void add_global_u64(u64* p, u64 value) {
  octile::emulation::checked_store(p, octile::emulation::checked_load<u64>(p) + value);
}

inline void store_matrix_bf16_x4(u32 address, const float* v) {
  store_matrix_x4(address, {pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]),
                            pack_bf16x2(v[4], v[5]), pack_bf16x2(v[6], v[7])});
}

// ---- lib/fp16.cuh, lib/pairs.cuh and lib/global.cuh
// --------------------------------------------------------------

inline u32 pack_fp16x2(float lo, float hi) {
  return static_cast<u32>(octile::reference::float_to_fp16(hi)) << 16 |
         octile::reference::float_to_fp16(lo);
}
inline void store_matrix_fp16_x4(u32 address, const float* v) {
  store_matrix_x4(address, {pack_fp16x2(v[0], v[1]), pack_fp16x2(v[2], v[3]),
                            pack_fp16x2(v[4], v[5]), pack_fp16x2(v[6], v[7])});
}

struct alignas(8) Floats2 {
  float value[2];
};
inline Floats2 load_shared_8(u32 address) { return load_shared<Floats2>(address); }
inline void store_shared_8(u32 address, float x, float y) {
  store_shared(address, Floats2{{x, y}});
}
inline Floats2 load_global_8(const float* p) { return octile::emulation::checked_load<Floats2>(p); }
inline float load_global_4_if(bool condition, const float* p) {
  return condition ? octile::emulation::checked_load<float>(p) : 0;
}
inline Floats2 load_global_8_if(bool condition, const float* p) {
  return condition ? load_global_8(p) : Floats2{};
}
inline void store_global_8_if(bool condition, float* p, float x, float y) {
  if (condition) octile::emulation::checked_store(p, Floats2{{x, y}});
}

// ---- lib/codes.cuh ------------------------------------------------------------------------------

// cvt.rn.satfinite: infinity saturates, unlike in the cast of docs/numerics.md.
inline u32 codes_of(std::initializer_list<float> values, octile::DType fp8) {
  const float limit = octile::max_finite(fp8);
  u32 codes = 0, shift = 0;
  for (const float v : values) {
    const float finite = std::isinf(v) ? std::copysign(limit, v) : v;
    codes |= u32{octile::reference::to_fp8(finite, fp8)} << shift;
    shift += 8;
  }
  return codes;
}
inline u32 e4m3x4(float a, float b, float c, float d) {
  return codes_of({a, b, c, d}, octile::DType::kE4M3);
}
inline u32 e5m2x4(float a, float b, float c, float d) {
  return codes_of({a, b, c, d}, octile::DType::kE5M2);
}
template <int kDistance>
void store_two_shared_4(u32 address, u32 first, u32 second) {
  store_shared(address, first);
  store_shared(address + kDistance, second);
}
inline void store_shared_1(u32 address, u32 byte) { store_shared(address, static_cast<u8>(byte)); }

// ---- lib/tma_reduce.cuh -------------------------------------------------------------------------

namespace tma {
inline void add_2d(const TensorMap* map, int x, int y, u32 src) {
  octile::emulation::add_box(map, {x, y}, src);
}
}  // namespace tma

// ---- lib/tma_3d.cuh ---------------------------------------------------------------------------

namespace tma {
inline void load_3d(u32 dst, const TensorMap* map, int x, int y, int z, u32 barrier) {
  octile::emulation::load_box(dst, map, {x, y, z}, barrier, octile::emulation::kOwnRank);
}
inline void prefetch_3d(const TensorMap* map, int, int, int) {
  octile::emulation::look_at_map(map);
}
inline void store_3d(const TensorMap* map, int x, int y, int z, u32 src) {
  octile::emulation::store_box(map, {x, y, z}, src);
}
inline void add_3d(const TensorMap* map, int x, int y, int z, u32 src) {
  octile::emulation::add_box(map, {x, y, z}, src);
}
}  // namespace tma

// ---- lib/wgmma.cuh ------------------------------------------------------------------------------

namespace wgmma {
template <int kPending>
void wait() {
  octile::emulation::wait_products(kPending);
}
template <int kMost>
void wait_for(int pending) {
  octile::emulation::wait_products(pending <= kMost ? pending : 0);
}
template <int kCount>
void pin(float (&)[kCount]) {}
inline u32 descriptor(u32 address) { return (address >> 4) | (1U << 16); }
constexpr u32 kDescriptorHigh = 0x40000040;
}  // namespace wgmma

// Specialise the templates Mma and MmaOnto, which each kernel's namespace declares.
#define OCTILE_INSTANTIATE_MMA(n, steps, types)                                              \
  template <>                                                                                \
  struct Mma<n> {                                                                            \
    static void issue(float (&d)[(n) / 2], u32 a, u32 b) {                                   \
      octile::emulation::issue_products({n, steps, types, a, b, kDescriptorHigh, false}, d); \
    }                                                                                        \
  };
#define OCTILE_INSTANTIATE_MMA_ONTO(n, types)                                           \
  template <>                                                                           \
  struct MmaOnto<n> {                                                                   \
    static void issue(float (&d)[(n) / 2], u32 a, u32 b) {                              \
      octile::emulation::issue_products({n, 4, types, a, b, kDescriptorHigh, true}, d); \
    }                                                                                   \
  };

// ---- lib/outer.cuh ------------------------------------------------------------------------------

namespace wgmma {
inline u32 outer_descriptor(u32 address) { return (address >> 4 & 0x3FFFU) | (8U << 16); }
constexpr u32 kOuterDescriptorHigh = 0x10;
}  // namespace wgmma

#define OCTILE_INSTANTIATE_MMA_OUTER(n)                                                         \
  template <>                                                                                   \
  struct MmaOuter<n> {                                                                          \
    static void issue(float (&d)[(n) / 2], u32 a, u32 b) {                                      \
      octile::emulation::issue_products({n, 1, "bf16.bf16", a, b, kOuterDescriptorHigh, false}, \
                                        d);                                                     \
    }                                                                                           \
  };

// ---- lib/mma.cuh and lib/mma_scaled.cuh ---------------------------------------------------------

namespace mma {
enum Element : int { kE4M3, kE5M2 };
inline void load_x4(u32 (&registers)[4], u32 address) {
  octile::emulation::load_matrices(registers, address);
}
constexpr octile::DType type_of(Element element) {
  return element == kE4M3 ? octile::DType::kE4M3 : octile::DType::kE5M2;
}
template <Element kA, Element kB>
void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  octile::emulation::multiply_fragments(type_of(kA), type_of(kB), d, a, b0, b1);
}
template <Element kA, Element kB, int kByte>
void multiply_scaled(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 scales_a, u32 scales_b) {
  octile::emulation::multiply_scaled_fragments(type_of(kA), type_of(kB), d, a, b0, b1, scales_a,
                                               scales_b, kByte);
}
}  // namespace mma

// ---- lib/f32x2.cuh ------------------------------------------------------------------------------

namespace two {
inline void add(float& x, float& y, float a, float b) {
  x += a;
  y += b;
}
inline void multiply_add(float& x, float& y, float a, float b, float u, float v) {
  x = std::fma(a, u, x);
  y = std::fma(b, v, y);
}
inline void multiply_add_scaled(float& x, float& y, float a, float b, float scale, float u,
                                float v) {
  multiply_add(x, y, a, b, scale * u, scale * v);
}
}  // namespace two

// ---- lib/tcgen05.cuh ---------------------------------------------------------------------------

namespace tcgen05 {
enum Element : int { kE4M3 = 0, kE5M2 = 1 };
inline void allocate(u32 to, u32 columns) { octile::emulation::tensor_allocate(to, columns); }
inline void release(u32 address, u32 columns) {
  octile::emulation::tensor_release(address, columns);
}
inline void fence_before() { octile::emulation::tensor_fence_before(); }
inline void fence_after() { octile::emulation::tensor_fence_after(); }
inline void commit(u32 barrier) { octile::emulation::tensor_commit(barrier); }
inline void commit_multicast(u32 barrier, u16 mask) {
  octile::emulation::tensor_commit(barrier, mask);
}
inline void multiply(u32 d, u32 a, u32 b, u32 high, u32 instruction, u32 adds) {
  octile::emulation::tensor_issue({d, a, b, high, instruction, adds != 0});
}
inline void multiply_scaled(u32 d, u32 a, u32 b, u32 high, u32 instruction, u32 scales_a,
                            u32 scales_b, u32 adds) {
  octile::emulation::tensor_issue({d, a, b, high, instruction, adds != 0,
                                   octile::emulation::TensorProduct::Kind::kScaled, scales_a,
                                   scales_b});
}
inline void copy_to_quarters(u32 to, u32 low, u32 high) {
  octile::emulation::TensorProduct copy{to, low, 0, high};
  copy.kind = octile::emulation::TensorProduct::Kind::kCopy;
  octile::emulation::tensor_issue(copy);
}
template <int kCount>
void load(float (&d)[kCount], u32 address) {
  octile::emulation::tensor_load(d, kCount, address);
}
template <int kCount>
void wait_loads(float (&)[kCount]) {
  octile::emulation::tensor_wait_loads();
}
}  // namespace tcgen05

namespace octile::emulation {

// One emitted kernel.
struct EmittedGemm {
  const char* problem = "";  // canonical text
  const char* config = "";
  void (*kernel)(const void* args) = nullptr;  // gemm::Arguments of its own namespace
};

// Returns all kernels that emit_gemm_sources.cc wrote.
std::span<const EmittedGemm> emitted_gemms();
// Returns those of tcgen05_mutants.h, in its order.
std::span<const EmittedGemm> emitted_mutants();

}  // namespace octile::emulation
