// A consumer's main loops by mma.sync: each warp multiplies its 16 rows of a strip by 16 columns at
// a time, from zero over kPromote of K, and promotes these sums in fp32. So a thread has 8 partial
// sums for every width of the tile, laid out as WGMMA's. Operands of A are held for a K-block, and
// those of B serve all strips. In a tile of 16 rows the four warps have the same rows and a quarter
// of the columns each; in a tile of 32 rows pairs of warps share rows. consumer.cuh has the
// contract.
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
  kColumnPairs = kWarpColumns / 16,    // two instructions' columns
  kPairSums = 8,                       // sums of a thread in them
  kHasSingle = kWarpColumns % 16 > 0,  // columns of one more instruction
};

static_assert(kWarpColumns % 8 == 0 && !kHasTail && cfg::kUnroll == 1 && cfg::kInFlight == 1,
              "warps multiply 8 or 16 columns at a time, of one K-block");

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
  enum : int { kHalves = 2 };
  u32 step[kSteps][4];

  __device__ __forceinline__ OperandB(const ConsumerThread& self, int stage, int pair) {
    const u32 first =
        self.operands.b + static_cast<u32>(stage * cfg::kBStageBytes + pair * (16 * 128));
#pragma unroll
    for (int s = 0; s < kSteps; ++s) mma::load_x4(step[s], first ^ static_cast<u32>(s * 32));
  }
};

// The same of 8 columns, behind the warp's pairs.
struct OperandSingle {
  enum : int { kHalves = 1 };
  u32 step[kSteps][2];

  __device__ __forceinline__ OperandSingle(const ConsumerThread& self, int stage) {
    const int row = self.first_column() + kColumnPairs * 16 + self.lane % 8;
    const u32 first =
        self.smem.b(stage) + static_cast<u32>(row * 128 + ((self.lane / 8) ^ (self.lane % 8)) * 16);
#pragma unroll
    for (int s = 0; s < kSteps; s += 2) {
      u32 two[4];
      mma::load_x4(two, first ^ static_cast<u32>(s * 32));
#pragma unroll
      for (int i = 0; i < 4; ++i) step[s + i / 2][i % 2] = two[i];
    }
  }
};

// Adds the products of steps [first, last) of 16 rows and b's columns to sums[at] and the next.
template <int kFirst, int kLast, typename Columns, int kSums>
__device__ __forceinline__ void multiply_pair(const u32 (&a)[kSteps][4], const Columns& b,
                                              float (&sums)[kSums], int at) {
#pragma unroll
  for (int half = 0; half < Columns::kHalves; ++half) {
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

// Adds the products of a K-block of b's columns to sums[..][at] and the next.
template <typename Columns, int kSums>
__device__ __forceinline__ void multiply_columns_onto(const OperandA& a, const Columns& b,
                                                      float (&sums)[kStrips][kSums], int at) {
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    multiply_pair<0, kSteps>(a.step[strip], b, sums[strip], at);
  }
  end_pair();
}

// Adds a K-block's products to `sums`.
template <int kSums>
__device__ __forceinline__ void multiply_block_onto(const ConsumerThread& self, int stage,
                                                    float (&sums)[kStrips][kSums]) {
  const OperandA a(self, stage);
#pragma unroll
  for (int pair = 0; pair < kColumnPairs; ++pair) {
    multiply_columns_onto(a, OperandB(self, stage, pair), sums, kPairSums * pair);
  }
  if constexpr (kHasSingle) {
    multiply_columns_onto(a, OperandSingle(self, stage), sums, kPairSums * kColumnPairs);
  }
}

// Promotes the parts from kPart on of b's columns of a K-block.
template <typename Scale, int kPart, typename Columns, int kSums>
__device__ __forceinline__ void promote_parts(const u32 (&a)[kSteps][4], const Columns& b,
                                              float (&acc)[kSums], int at,
                                              const typename Scale::Factors& factors,
                                              const typename Scale::BlockScales& scales) {
  if constexpr (kPart < kParts) {
    float partial[4 * Columns::kHalves] = {};
    multiply_pair<kPart * kPartSteps, (kPart + 1) * kPartSteps>(a, b, partial, 0);
    if constexpr (Scale::kPromotesParts) {
      Scale::template promote_part<kPart>(acc, partial, factors, scales, at);
    } else {
      Scale::promote(acc, partial, factors, scales, at);
    }
    promote_parts<Scale, kPart + 1>(a, b, acc, at, factors, scales);
  }
}

// Promotes the products of a K-block of b's columns into acc[..][at] and the next.
template <typename Scale, typename Columns, int kSums>
__device__ __forceinline__ void promote_columns(const OperandA& a, const Columns& b,
                                                float (&acc)[kStrips][kSums], int at,
                                                const typename Scale::Factors (&factors)[kStrips],
                                                const typename Scale::BlockScales& scales) {
#pragma unroll
  for (int strip = 0; strip < kStrips; ++strip) {
    promote_parts<Scale, 0>(a.step[strip], b, acc[strip], at, factors[strip], scales);
  }
  end_pair();
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
    promote_columns<Scale>(a, OperandB(self, stage, pair), acc, kPairSums * pair, factors, scales);
  }
  if constexpr (kHasSingle) {
    promote_columns<Scale>(a, OperandSingle(self, stage), acc, kPairSums * kColumnPairs, factors,
                           scales);
  }
}

// Whether the warp's rows exist: of a short tile those of the first warps do.
__device__ __forceinline__ bool has_rows(const ConsumerThread& self) {
  return kStripRows * kWarpsAcross == 64 || self.warp * 16 < kStripRows;
}

// Returns true once the last sums are there, which depend on the last reads of the stage.
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
