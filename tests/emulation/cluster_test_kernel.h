// A small kernel with the protocol of the GEMM's, for tests of the emulation itself. Each of its
// mistakes can be switched on.
#pragma once
// The wrappers contain implicit conversions that only CUDA accepts without a warning.
#pragma GCC system_header

#include "tests/emulation/gemm_kernels.h"

namespace octile::emulation::small {

namespace wgmma {
using namespace ::wgmma;
template <int kN>
struct Mma;
template <int kN>
struct MmaOnto;
OCTILE_INSTANTIATE_MMA(16, 4, "e4m3.e4m3")
OCTILE_INSTANTIATE_MMA_ONTO(16, "e4m3.e4m3")
}  // namespace wgmma

struct Mistakes {
  bool releases_before_wait = false;  // of a WGMMA group that reads the stage
  bool promotes_before_wait = false;  // sums that the group has not written
  int bytes_too_many = 0;             // that the producer announces
  bool arrives_twice = false;         // when it releases a stage
  bool has_no_fence = false;          // before TMA reads what threads wrote
  bool overwrites_staging = false;    // while TMA may read it
  bool ends_before_store_is_read = false;
  // Not a mistake: the tensor core sums all K-blocks, with one of them in flight.
  bool sums_all = false;
};

constexpr int kStages = 2;
constexpr int kStageBytes = 64 * 128 + 16 * 128;
constexpr int kStaging = kStages * kStageBytes;  // of D, 64 x 16 fp32
constexpr int kFull = kStaging + 64 * 64;
constexpr int kEmpty = kFull + 8 * kStages;
constexpr int kSharedBytes = kEmpty + 8 * kStages;
constexpr int kThreads = 160;  // a warpgroup, and a warp of which one thread copies

struct Arguments {
  const TensorMap* a;
  const TensorMap* b;
  const TensorMap* d;  // boxes of 16 x 64 fp32
  int k_blocks;
  Mistakes mistakes;
};

inline void produce(const Arguments& args) {
  for (int block = 0; block < args.k_blocks; ++block) {
    const u32 stage = kSharedBase + block % kStages * kStageBytes;
    const u32 full = kSharedBase + kFull + 8 * (block % kStages);
    ::mbarrier::wait(full - kFull + kEmpty, (block / kStages & 1) ^ 1);
    ::mbarrier::arrive_expect_tx(full, kStageBytes + args.mistakes.bytes_too_many);
    ::tma::load_2d(stage, args.a, block * 128, 0, full);
    ::tma::load_2d(stage + 64 * 128, args.b, block * 128, 0, full);
  }
}

inline void release_stage(const Arguments& args, int block) {
  __syncwarp();
  const int arrivals = args.mistakes.arrives_twice && block == 1 ? 2 : 1;
  for (int i = 0; i < arrivals && threadIdx.x % 32 == 0; ++i) {
    ::mbarrier::arrive(kSharedBase + kEmpty + 8 * (block % kStages));
  }
}

inline void sum(const Arguments& args, float (&acc)[8]) {
  for (int block = 0; block < args.k_blocks; ++block) {
    float partial[8];
    ::mbarrier::wait(kSharedBase + kFull + 8 * (block % kStages), block / kStages & 1);
    const u32 a = wgmma::descriptor(kSharedBase + block % kStages * kStageBytes);
    wgmma::Mma<16>::issue(partial, a, a + (64 * 128 >> 4));
    if (args.mistakes.releases_before_wait) release_stage(args, block);
    if (!args.mistakes.promotes_before_wait) wgmma::wait<0>();
    for (int i = 0; i < 8; ++i) acc[i] += partial[i];
    wgmma::wait<0>();
    if (!args.mistakes.releases_before_wait) release_stage(args, block);
  }
}

// The same by the tensor core alone. A stage is handed back once the next K-block's group is in
// flight and its own has completed.
inline void sum_all(const Arguments& args, float (&acc)[8]) {
  for (int block = 0; block < args.k_blocks; ++block) {
    ::mbarrier::wait(kSharedBase + kFull + 8 * (block % kStages), block / kStages & 1);
    const u32 a = wgmma::descriptor(kSharedBase + block % kStages * kStageBytes);
    wgmma::MmaOnto<16>::issue(acc, a, a + (64 * 128 >> 4));
    if (args.mistakes.releases_before_wait) release_stage(args, block);
    wgmma::wait<1>();
    if (!args.mistakes.releases_before_wait && block > 0) release_stage(args, block - 1);
  }
  if (!args.mistakes.promotes_before_wait) wgmma::wait<0>();
  if (!args.mistakes.releases_before_wait) release_stage(args, args.k_blocks - 1);
}

// Stores D in rows of 64 bytes without a swizzle, then once more the same.
inline void store(const Arguments& args, const float (&acc)[8]) {
  const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int pass = 0; pass < 2; ++pass) {
    const bool waits = pass > 0 && !args.mistakes.overwrites_staging;
    if (threadIdx.x == 0 && waits) ::tma::wait_stores_read<0>();
    named_barrier(1, 128);
    for (u32 i = 0; i < 8; ++i) {
      const u32 at = (row + 8 * (i >> 1 & 1)) * 16 + 8 * (i / 4) + 2 * (lane % 4) + (i & 1);
      // The second pass stores something else below D.
      store_shared_f32(kSharedBase + kStaging + 4 * at, pass == 0 ? acc[i] : -1.0F);
    }
    if (!args.mistakes.has_no_fence) ::tma::fence_async_shared();
    named_barrier(1, 128);
    if (threadIdx.x == 0) {
      ::tma::store_2d(args.d, 0, 64 * pass, kSharedBase + kStaging);
      ::tma::commit_stores();
    }
  }
  if (threadIdx.x == 0 && !args.mistakes.ends_before_store_is_read) ::tma::wait_stores_read<0>();
}

inline void kernel(const Arguments& args) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ::mbarrier::init(kSharedBase + kFull + 8 * i, 1);
      ::mbarrier::init(kSharedBase + kEmpty + 8 * i, 4);
    }
    ::mbarrier::fence_init();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (elect_one()) produce(args);
    __syncwarp();
    return;
  }
  float acc[8] = {};
  if (args.mistakes.sums_all) {
    sum_all(args, acc);
  } else {
    sum(args, acc);
  }
  store(args, acc);
}

}  // namespace octile::emulation::small
