// A consumer's main loops by mma.sync: each warp multiplies its 16 rows of a strip by 16 columns at
// a time, from zero over kPromote of K, and promotes these sums in fp32. So a thread has 8 partial
// sums, whatever the width of the tile, laid out as WGMMA's. Operands of A are held for a K-block,
// and those of B serve all strips. consumer.cuh has the contract.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "lib/mma.cuh"
#define OCTILE_MMA_TYPES mma::kE4M3, mma::kE4M3
#endif

namespace gemm {

enum : int {
  kSteps = 128 / 32,  // instructions along a K-block
  kPartSteps = kSteps / kParts,
  kColumnPairs = cfg::kBlockN / 16,  // two instructions' columns
  kPairSums = 8,                     // sums of a thread in them
};

static_assert(cfg::kBlockN % 16 == 0 && !kHasTail && cfg::kUnroll == 1 && cfg::kInFlight == 1,
              "warps multiply 16 columns at a time, of one K-block");

// A K-block of the warp's rows.
struct OperandA {
  u32 step[kStrips][kSteps][4];

  __device__ __forceinline__ OperandA(const ConsumerThread& self, int stage) {
    const u32 first = self.operands.a + static_cast<u32>(stage * cfg::kAStageBytes);
#pragma unroll
    for (int i = 0; i < kStrips * kSteps; ++i) {
      const u32 strip = first + static_cast<u32>(i / kSteps * (64 * 128));
      mma::load_x4(step[i / kSteps][i % kSteps], strip ^ static_cast<u32>(i % kSteps * 32));
    }
  }
};

// A K-block of 16 columns.
struct OperandB {
  u32 step[kSteps][4];

  __device__ __forceinline__ OperandB(const ConsumerThread& self, int stage, int pair) {
    const u32 first =
        self.operands.b + static_cast<u32>(stage * cfg::kBStageBytes + pair * (16 * 128));
#pragma unroll
    for (int s = 0; s < kSteps; ++s) mma::load_x4(step[s], first ^ static_cast<u32>(s * 32));
  }
};

// Adds the products of steps [first, last) of 16 rows and 16 columns to sums[at] to sums[at + 7].
template <int kFirst, int kLast, int kSums>
__device__ __forceinline__ void multiply_pair(const u32 (&a)[kSteps][4], const OperandB& b,
                                              float (&sums)[kSums], int at) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float d[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = sums[at + 4 * half + i];
#pragma unroll
    for (int s = kFirst; s < kLast; ++s) {
      mma::multiply<OCTILE_MMA_TYPES>(d, a[s], b.step[s][2 * half], b.step[s][2 * half + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[at + 4 * half + i] = d[i];
  }
}

// Behind a pair's promotion: ptxas starts no later pair before it, except that it reads the next
// one's operands. Otherwise it starts as many as the warp could have in flight, and spills. It
// costs no instruction.
__device__ __forceinline__ void end_pair() { __syncwarp(); }

// Adds a K-block's products to `sums`.
template <int kSums>
__device__ __forceinline__ void multiply_block_onto(const ConsumerThread& self, int stage,
                                                    float (&sums)[kStrips][kSums]) {
  const OperandA a(self, stage);
#pragma unroll
  for (int pair = 0; pair < kColumnPairs; ++pair) {
    const OperandB b(self, stage, pair);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      multiply_pair<0, kSteps>(a.step[strip], b, sums[strip], kPairSums * pair);
    }
    end_pair();
  }
}

// Promotes the parts from kPart on of 16 columns of a K-block.
template <typename Scale, int kPart, int kSums>
__device__ __forceinline__ void promote_parts(const u32 (&a)[kSteps][4], const OperandB& b,
                                              float (&acc)[kSums], int at,
                                              const typename Scale::Factors& factors,
                                              const typename Scale::BlockScales& scales) {
  if constexpr (kPart < kParts) {
    float partial[kPairSums] = {};
    multiply_pair<kPart * kPartSteps, (kPart + 1) * kPartSteps>(a, b, partial, 0);
    Scale::promote(acc, partial, factors, scales, at);
    promote_parts<Scale, kPart + 1>(a, b, acc, at, factors, scales);
  }
}

// Promotes a K-block's products into acc.
template <typename Scale, int kSums>
__device__ __forceinline__ void multiply_block(const ConsumerThread& self, int stage, int block,
                                               float (&acc)[kStrips][kSums]) {
  const typename Scale::BlockScales scales(self, stage, block);
  const OperandA a(self, stage);
  typename Scale::Factors factors[kStrips];
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    factors[strip] = typename Scale::StageScales(self, stage, strip, block).factors();
  }
#pragma unroll
  for (int pair = 0; pair < kColumnPairs; ++pair) {
    const OperandB b(self, stage, pair);
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      promote_parts<Scale, 0>(a.step[strip], b, acc[strip], kPairSums * pair, factors[strip],
                              scales);
    }
    end_pair();
  }
}

// Whether the warp's rows exist: of a short tile those of the first warps do.
__device__ __forceinline__ bool has_rows(const ConsumerThread& self) {
  return kStripRows == 64 || self.warp * 16 < kStripRows;
}

// Returns true once the last sums are there, which depend on what was read of the stage last.
template <int kSums>
__device__ __forceinline__ bool have_come(const float (&sums)[kStrips][kSums]) {
  return has_come(sums[kStrips - 1][kSums - 1]);
}

// Sums `k_blocks` K-blocks onto `sums` by the tensor core alone.
template <int kSums>
__device__ __forceinline__ void multiply_onto(const ConsumerThread& self, Ring& ring, int k_blocks,
                                              float (&sums)[kStrips][kSums]) {
#pragma unroll 1
  for (; k_blocks > 0; --k_blocks) {
    const int stage = next_stage(self, ring);
    if (has_rows(self)) multiply_block_onto(self, stage, sums);
    release_stage(self, stage, have_come(sums));
  }
}

template <typename Scale, bool kSome, int kSums>
__device__ __forceinline__ void sum_k_blocks(const ConsumerThread& self, Ring& ring, int k_blocks,
                                             int end, float (&acc)[kStrips][kSums]) {
  if constexpr (Scale::kOwnLoop) {
    Scale::multiply(self, ring, k_blocks, end, acc);
  } else if constexpr (kIntervalBlocks == 0) {
    multiply_onto(self, ring, k_blocks, acc);
  } else if constexpr (kIntervalBlocks > 1) {
#pragma unroll 1
    for (; k_blocks > 0; k_blocks -= kIntervalBlocks) {
      float partial[kStrips][kSums] = {};
      multiply_onto(self, ring, min(k_blocks, static_cast<int>(kIntervalBlocks)), partial);
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) add_sums(acc[strip], partial[strip]);
    }
  } else {
#pragma unroll 1
    for (; k_blocks > 0; --k_blocks) {
      const int stage = next_stage(self, ring);
      if (has_rows(self)) multiply_block<Scale>(self, stage, end - k_blocks, acc);
      release_stage(self, stage, have_come(acc));
    }
  }
}

}  // namespace gemm
