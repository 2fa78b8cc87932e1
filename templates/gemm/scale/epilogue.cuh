// Scale policy: both operands have a scale for each row, or both have one scale (Scales: PerRow or
// PerTensor). A scale then serves all of K, so the main loop adds plain partial sums, and the
// finished sums are multiplied: acc = (sa * sb) * acc. The ring holds no scales, and no producer
// reads any. block_b.cuh has the contract of a scale policy.
//
// Ranks that split K multiply their own sums, before these are added. A rank without K-blocks reads
// no scale, and neither does a GEMM with an empty K, whose caller need not pass any.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/producer.cuh"
#include "gemm/scale/format.cuh"
#include "lib/global.cuh"
#endif

namespace gemm::scale {

// fp32 [1] each, with groups one a group.
struct PerTensor {
  enum : bool { kOfTensors = true };
  template <int kSums>
  __device__ static __forceinline__ void apply(const Source& from, const ConsumerThread&,
                                               const Tile&, const Limits&,
                                               float (&acc)[kStrips][kSums]) {
    const float factor =
        __fmul_rn(load_global_4_if(true, from.scale_a), load_global_4_if(true, from.scale_b));
#pragma unroll
    for (int i = 0; i < kStrips * kSums; ++i) {
      float& sum = acc[i / kSums][i % kSums];
      sum = __fmul_rn(factor, sum);
    }
  }
};

// fp32 [m] of A's rows and [n] of B's, which are the columns of D.
struct PerRow {
  enum : bool { kOfTensors = false };
  template <int kSums>
  __device__ static __forceinline__ void apply(const Source& from, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    const int row = tile.m0 + self.first_row() + self.warp * kWarpRows + self.lane / 4;
    const int column = tile.n0 + 2 * (self.lane % 4);
    float rows[kStrips][2];
#pragma unroll
    for (int i = 0; i < 2 * kStrips; ++i) {
      const int at = row + i / 2 * kStripStep + i % 2 * 8;
      rows[i / 2][i % 2] = load_global_4_if(at < limits.m, from.scale_a + at);
    }
    // Columns of some groups of 8 are read together, because each read takes as long as all, and
    // registers for all are not left beside the sums of the largest tiles.
    constexpr int kGroups = kSums / 4;
    constexpr int kTogether = kGroups < 8 ? kGroups : 8;
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      Floats2 columns[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int at = column + 8 * (first + j);
        columns[j] = load_global_8_if(first + j < kGroups && at < limits.n, from.scale_b + at);
      }
#pragma unroll
      for (int j = 0; j < kTogether && first + j < kGroups; ++j) {
#pragma unroll
        for (int i = 0; i < 4 * kStrips; ++i) {
          const float factor = __fmul_rn(rows[i / 4][i % 4 / 2], columns[j].value[i % 2]);
          float& sum = acc[i / 4][4 * (first + j) + i % 4];
          sum = __fmul_rn(factor, sum);
        }
      }
    }
  }
};

template <typename Scales>
struct Epilogue {
  using FormatA = Fp32;
  using FormatB = Fp32;
  enum : int {
    kAtEnd = true,
    kOfTensors = Scales::kOfTensors,
    kScaleAStageBytes = 0,
    kScaleBStageBytes = 0,
    kCopiedPerRowOfA = 0,
    kCopiedPerRowOfB = 0,
    kHasScaleWarp = false,
    kPromotesFromStage = false,
    kReadsAhead = false,
    kPromotesParts = false,
    kOwnLoop = false,
    kLanesHoldRows = false,
  };

  __device__ static __forceinline__ void load_a(const float*, u32, int, int, u32) {}
  __device__ static __forceinline__ void load_b(const float*, u32, int, int, u32) {}

  struct BlockScales {
    __device__ __forceinline__ BlockScales(const ConsumerThread&, int, int) {}
  };
  struct Factors {
    __device__ __forceinline__ float last_read() const { return 0; }  // nothing is read
  };
  struct StageScales {
    __device__ __forceinline__ StageScales(const ConsumerThread&, int, int, int) {}
    __device__ __forceinline__ Factors factors() const { return {}; }
  };

  template <int kSums, int kPartial>
  __device__ static __forceinline__ float promote(float (&acc)[kSums],
                                                  const float (&partial)[kPartial], const Factors&,
                                                  const BlockScales&, int first = 0) {
    add_sums(acc, partial, first);
    return 0;
  }

  template <int kSums>
  __device__ static __forceinline__ void finish(const Source& from, const ConsumerThread& self,
                                                const Tile& tile, const Limits& limits,
                                                float (&acc)[kStrips][kSums]) {
    wait_for_previous_kernel();  // returns at once: the operands have come
    Scales::apply(from, self, tile, limits, acc);
  }
};

}  // namespace gemm::scale
