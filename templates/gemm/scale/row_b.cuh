// Scale policy: A has a scale for every row and K-block, and so has B (1x128 both). B's rows are
// the columns of D, so every partial sum has a factor of its own. A stage holds the scales of both
// as TMA copied them. block_b.cuh has the contract of a scale policy.
//
// A thread reads B's scales when it promotes, two neighbouring columns at a time, because registers
// for all of them are not left beside the accumulators of most tiles. So a stage is handed back
// after its last promotion. With kHoldScales a warpgroup of several strips reads them once for all
// strips of a K-block, and ahead: while it promotes a K-block's last strip, it replaces each pair
// by the next K-block's. If it read them before it issues a WGMMA group, the tensor core would wait
// for them. If it read them behind the group, they would wait for the operands that the tensor core
// reads (docs/experiments/gemm.md, v40).
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/producer.cuh"
#include "gemm/scale/format.cuh"
#endif

namespace gemm::scale {

template <typename OfA, typename OfB>
struct RowB {
  using FormatA = OfA;
  using FormatB = OfB;
  enum : int {
    kAtEnd = false,
    kScaleAStageBytes = cfg::kBlockM * 4,
    kScaleBStageBytes = cfg::kBlockN * 4,
    kCopiedPerRowOfA = 4,
    kCopiedPerRowOfB = 4,
    kHasScaleWarp = false,
    kPromotesFromStage = true,
    kReadsAhead = cfg::kHoldScales,
    kPromotesParts = false,
    kOwnLoop = false,
    kLanesHoldRows = false,
    // Pairs of columns whose scales a thread reads, and those that it holds: all but two, because
    // 256x128 spills if it holds all.
    kPairs = kAccumulators / 4,
    kHeld = cfg::kHoldScales ? kPairs - 2 : 0,
  };
  static_assert(!cfg::kHoldScales || !kHasTail, "held scales are those of a whole tile");

  __device__ static __forceinline__ void load_a(const float* scales, u32 stage, int first, int rows,
                                                u32 full) {
    load<cfg::kClusterN>(scales, stage, first, rows, full);
  }
  __device__ static __forceinline__ void load_b(const float* scales, u32 stage, int first, int rows,
                                                u32 full) {
    load<cfg::kClusterM>(scales, stage, first, rows, full);
  }

  // B's scales of a stage.
  struct BlockScales {
    u32 address;  // address for this thread's first two columns
    int block;    // counts the K-blocks of K
    Floats2 held[kHeld > 0 ? kHeld : 1];

    __device__ __forceinline__ BlockScales(const ConsumerThread& self, int stage, int k_block)
        : address(first_of(self, stage)), block(k_block) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j) held[j] = load(j);
    }
    // Returns those of columns 8 * j + 2 * (lane % 4) and the next.
    __device__ __forceinline__ Floats2 columns(int j) const {
      return j < kHeld ? held[j] : load(j);
    }

    // Moves to another stage. The held pairs stay those of the old one.
    __device__ __forceinline__ void move(const ConsumerThread& self, int stage, int k_block) {
      address = first_of(self, stage);
      block = k_block;
    }
    __device__ __forceinline__ void hold(int j) { held[j] = load(j); }

   private:
    __device__ static __forceinline__ u32 first_of(const ConsumerThread& self, int stage) {
      const u32 of_tile = self.smem.scales_b(stage) + self.lane % 4 * 8;
      return kWarpColumns == cfg::kBlockN ? of_tile : of_tile + self.first_column() * 4;
    }
    __device__ __forceinline__ Floats2 load(int j) const {
      Floats2 pair = load_shared_8(address + j * 32);
      pair.value[0] = OfB::decode(pair.value[0], block);
      pair.value[1] = OfB::decode(pair.value[1], block);
      return pair;
    }
  };

  // The scales of a thread's two rows.
  struct Factors {
    float upper, lower;
    __device__ __forceinline__ float last_read() const { return lower; }
  };

  struct StageScales {
    Factors rows;

    __device__ __forceinline__ StageScales(const ConsumerThread& self, int stage, int strip,
                                           int block) {
      const u32 a = self.smem.scales_a(stage) + (self.scale_row + strip * kStripStep) * 4;
      rows.upper = OfA::decode(load_shared_f32(a), block);
      rows.lower = OfA::decode(load_shared_f32(a + 8 * 4), block);
    }
    __device__ __forceinline__ Factors factors() const { return rows; }
  };

  // acc = fma(partial, sa * sb, acc). Returns the scale that it read last.
  template <int kSums, int kPartial>
  __device__ static __forceinline__ float promote(float (&acc)[kSums],
                                                  const float (&partial)[kPartial],
                                                  const Factors& factors, const BlockScales& block,
                                                  int first = 0) {
    float last_read = 0;
#pragma unroll
    for (int j = 0; j < kPartial / 4; ++j) {
      const Floats2 b = block.columns(first / 4 + j);
      add(acc, partial, j, factors, b, first);
      last_read = b.value[1];
    }
    return last_read;
  }

  // The same, and makes `block` the scales of K-block `next_block`, which are in stage `next`.
  template <int kSums>
  __device__ static __forceinline__ void promote_ahead(float (&acc)[kSums],
                                                       const float (&partial)[kSums],
                                                       const Factors& factors, BlockScales& block,
                                                       const ConsumerThread& self, int next,
                                                       int next_block) {
    // Pairs that are not held are read from the old stage, so they come first.
#pragma unroll
    for (int j = kHeld; j < kSums / 4; ++j) add(acc, partial, j, factors, block.columns(j));
    block.move(self, next, next_block);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      add(acc, partial, j, factors, block.columns(j));
      block.hold(j);
    }
  }

  template <int kSums>
  __device__ static __forceinline__ void finish(const Source&, const ConsumerThread&, const Tile&,
                                                const Limits&, float (&)[kStrips][kSums]) {}

 private:
  // Adds four partial sums, those of columns 8 * j + 2 * (lane % 4) and the next, to the sums from
  // acc[first] on.
  template <int kSums, int kPartial>
  __device__ static __forceinline__ void add(float (&acc)[kSums], const float (&partial)[kPartial],
                                             int j, const Factors& factors, const Floats2& b,
                                             int first = 0) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float a = i < 2 ? factors.upper : factors.lower;
      const int at = 4 * j + i;
      two::multiply_add_scaled(acc[first + at], acc[first + at + 1], partial[at], partial[at + 1],
                               a, b.value[0], b.value[1]);
    }
  }

  // Copies the scales of rows [first, first + rows), to the whole cluster if `kSharing` CTAs share
  // the operand.
  template <int kSharing>
  __device__ static __forceinline__ void load(const float* scales, u32 stage, int first, int rows,
                                              u32 full) {
    if constexpr (kSharing > 1) {
      tma::load_bulk_multicast(stage + first * 4, scales + first, rows * 4, full, kWholeCluster);
    } else {
      tma::load_bulk(stage + first * 4, scales + first, rows * 4, full);
    }
  }
};

}  // namespace gemm::scale
