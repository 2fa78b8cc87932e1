// Scale policy: the instruction multiplies the scales of blocks, which are powers of two
// (lib/mma_scaled.cuh), and sums all of K in the fp32 sums: nothing is promoted. The policy has a
// main loop of its own for warps that multiply by themselves. A stage's scales are filled as in
// another policy, Staged (BlockB, RowB, StagedMx), which leaves a word for each row of A, and
// for each column of a tile, each run of its columns in a scale block, or all of them.
// block_b.cuh has the contract of a scale policy.
//
// An instruction takes the exponents of its 16 rows of A and 8 columns of B from a byte of a word
// of each lane. The scale of a block of 128 of K serves all four steps of a K-block (kBytes = 1).
// The exponent of an fp32 scale is all that counts: 2^-127, subnormal, has exponent 0, and infinity
// and NaN have 255, which is NaN. A word of MX has a byte for each step (kBytes = 4).
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer_mma.cuh"
#include "gemm/scale/exponents.cuh"
#include "lib/mma_scaled.cuh"
#endif

namespace gemm::scale {

template <typename Staged, int kBytes>
struct Inside : Staged {
  enum : int {
    kOwnLoop = true,
    kScalesOfB = Staged::kScaleBStageBytes / 4,
    kColumnsOfScale = cfg::kBlockN / kScalesOfB,
  };

  // The exponents of B's scales in a stage.
  struct ExponentsOfB {
    u32 address;
    int block;
    int column;   // the thread's of the warp's first 8
    u32 of_tile;  // if all columns have one

    __device__ __forceinline__ ExponentsOfB(const ConsumerThread& self, int stage, int k_block)
        : address(self.smem.scales_b(stage)),
          block(k_block),
          column(self.first_column() + (kColumnsOfScale == 1 ? self.lane / 4 : 0)),
          of_tile(kScalesOfB == 1 ? load(0) : 0) {}
    // Returns that of column lane / 4 of the warp's columns [8 * group, 8 * group + 8), which lie
    // in one block.
    __device__ __forceinline__ u32 of(int group) const {
      return kScalesOfB == 1 ? of_tile : load((column + 8 * group) / kColumnsOfScale);
    }

   private:
    __device__ __forceinline__ u32 load(int index) const {
      return exponent_of(typename Staged::FormatB(), load_shared_f32(address + index * 4), block);
    }
  };

  // Adds the products of 16 rows and 8 columns in the steps from kStep on of a K-block.
  template <int kStep, typename Columns>
  __device__ static __forceinline__ void multiply_steps(float (&d)[4], const u32 (&a)[kSteps][4],
                                                        const Columns& b, int half, u32 of_rows,
                                                        u32 of_columns) {
    if constexpr (kStep < kSteps) {
      mma::multiply_scaled<OCTILE_MMA_TYPES, kStep % kBytes>(
          d, a[kStep], b.step[kStep][2 * half], b.step[kStep][2 * half + 1], of_rows, of_columns);
      multiply_steps<kStep + 1>(d, a, b, half, of_rows, of_columns);
    }
  }

  // Adds the products of a K-block of b's columns to acc[..][at] and the next. The first of them
  // are columns 8 * group of the warp's.
  template <typename Columns, int kSums>
  __device__ static __forceinline__ void multiply_columns(const OperandA& a, const Columns& b,
                                                          const u32 (&of_rows)[kStrips],
                                                          const ExponentsOfB& of_b, int group,
                                                          float (&acc)[kStrips][kSums]) {
    u32 of_columns[Columns::kHalves];
#pragma unroll
    for (int half = 0; half < Columns::kHalves; ++half) of_columns[half] = of_b.of(group + half);
#pragma unroll
    for (int i = 0; i < kStrips * Columns::kHalves; ++i) {
      const int strip = i / Columns::kHalves, half = i % Columns::kHalves;
      const int at = 4 * (group + half);
      float d[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) d[j] = acc[strip][at + j];
      multiply_steps<0>(d, a.step[strip], b, half, of_rows[strip], of_columns[half]);
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[strip][at + j] = d[j];
    }
    end_pair();
  }

  // Adds a K-block's products to acc.
  template <int kSums>
  __device__ static __forceinline__ void multiply_block(const ConsumerThread& self, int stage,
                                                        int block, float (&acc)[kStrips][kSums]) {
    const OperandA a(self, stage);
    u32 of_rows[kStrips];
    const u32 scales = self.smem.scales_a(stage) + (self.scale_row + self.lane % 2 * 8) * 4;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      of_rows[strip] = exponent_of(typename Staged::FormatA(),
                                   load_shared_f32(scales + strip * (kStripStep * 4)), block);
    }
    const ExponentsOfB of_b(self, stage, block);
#pragma unroll
    for (int pair = 0; pair < kColumnPairs; ++pair) {
      multiply_columns(a, OperandB(self, stage, pair), of_rows, of_b, 2 * pair, acc);
    }
    if constexpr (kHasSingle) {
      multiply_columns(a, OperandSingle(self, stage), of_rows, of_b, 2 * kColumnPairs, acc);
    }
  }

  // The main loop of a consumer. K may be empty.
  template <int kSums>
  __device__ static __forceinline__ void multiply(const ConsumerThread& self, Ring& ring,
                                                  int k_blocks, int end,
                                                  float (&acc)[kStrips][kSums]) {
#pragma unroll 1
    for (; k_blocks > 0; --k_blocks) {
      const int stage = next_stage(self, ring);
      if (has_rows(self)) multiply_block(self, stage, end - k_blocks, acc);
      release_stage(self, stage, have_come(acc));
    }
  }
};

}  // namespace gemm::scale
