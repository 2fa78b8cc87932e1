// Scale policy: A has a scale for every row and K-block (1x128), B one for every 128 columns and
// K-block (128x128). A stage holds A's scales as TMA copied them, and a scale of B for each segment
// of columns that lies in one block.
//
// Contract of a scale policy:
//   kScaleAStageBytes, kScaleBStageBytes  bytes of scales of A and B that a stage must hold
//   kCopiedPerRowOfA, kCopiedPerRowOfB  bytes of them that the copy thread brings
//   FormatA, FormatB   how the copied scales lie in memory (format.cuh)
//   kHasScaleWarp      whether a producer warp writes scales, with one more arrival at `full`
// The copy thread, one thread, calls these. They may only issue copies that complete on `full`:
//   load_a(scales, stage, first, rows, full)  rows [first, first + rows) of a K-block of A, whose
//                      scales of the tile's first row are at `scales`
//   load_b(scales, stage, first, rows, full)  likewise of B, whose rows are the columns of D
// The scale warp, all 32 lanes, holds in registers and calls, touching no barrier:
//   kLanesHoldRows     which of these it holds
//   LaneScales         scales of 32 K-blocks, each lane those of one: load, store
//   LaneRows           scales of one K-block, each lane those of rows lane, lane + 32, .. of both
//                      operands. Rows that a tensor lacks have any scale: their sums are not stored
//     place<Walk>(from, e, tile)  where the scales of a tile are
//     load(place, block, lane)    reads those of a K-block
//     store(stage_a, stage_b, block, lane)  writes them into a stage, and orders them for the async
//                      proxy where that reads them
//   kAhead             K-blocks of LaneRows that it holds
//   clear_stages(smem, lane)  with LaneRows: writes what of all stages stays the same
// A consumer warpgroup, all threads, calls these between a stage's `full` and `empty`. They touch
// no barrier:
//   BlockScales        scales of a stage that serve all strips; `block` counts the K-blocks of K
//   StageScales        reads the scales of a strip's WGMMA group from a stage
//   Factors            what promote multiplies by, in registers until the group is promoted;
//                      last_read() is the one whose scale was read last
//   kPromotesFromStage whether promote reads the stage, which is then handed back after it
//   kReadsAhead        whether BlockScales are kept from one K-block to the next, by promote_ahead
//   kPromotesParts     whether a warp that multiplies by itself calls promote_part<kPart>, with the
//                      arguments of promote, for each part of a K-block
//   promote(acc, partial, factors, block, first)  adds partial sums to the fp32 sums from
//   acc[first]
//                      on, a multiple of 8: a strip's (first = 0), or those of 16 columns. Returns
//                      the scale that was read last from the stage, or what was made of it.
//   finish(from, self, tile, limits, acc)  completes the sums after the last K-block of a tile, if
//                      it has K-blocks; before the ranks that split K add their sums
// A policy may bring the consumers' loop itself (mx.cuh), and then has nothing that the common loop
// in consumer_wgmma.cuh calls:
//   kOwnLoop           whether a consumer warpgroup, all threads, calls once for a tile
//     multiply(self, ring, k_blocks, end, acc)  with cfg::kConsumerRegisters. It adds the k_blocks
//                      K-blocks before `end`, at least one, to acc. For each it waits for the
//                      stage's `full`, advances `ring`, and calls release_stage once it has read
//                      all of the stage. It returns with no WGMMA group in flight. It has whole
//                      tiles alone, and a configuration with kInFlight = 1.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/producer.cuh"
#include "gemm/scale/format.cuh"
#endif

namespace gemm::scale {

template <typename Format>
struct BlockB {
  using FormatA = Format;
  using FormatB = Fp32;
  enum : int {
    kAtEnd = false,
    // Columns sure to lie in one scale block of 128 for every first column of the tile, and the
    // most blocks that a tile can touch.
    kSegment = gcd(cfg::kBlockN, 128),
    kBlocks = ceil_div(cfg::kBlockN - kSegment, 128) + 1,
    // Scales of B in a stage: one if the tile lies in one block, else one for each segment. A warp
    // that has some of the columns reads one for each group of them that is sure to have one.
    kScalesB = kBlocks == 1 ? 1 : cfg::kBlockN / kSegment,
    kGroup = kWarpsAcross > 1 ? 8 : gcd(kWarpColumns, kSegment),
    kScalesOfWarp = kBlocks == 1 ? 1 : kWarpColumns / kGroup,
    kScaleAStageBytes = cfg::kBlockM * 4,
    kScaleBStageBytes = kScalesB * 4,
    kCopiedPerRowOfA = 4,
    kCopiedPerRowOfB = 0,
    kHasScaleWarp = true,
    kPromotesFromStage = false,
    kReadsAhead = false,
    kPromotesParts = false,
    kOwnLoop = false,
    kLanesHoldRows = false,
  };

  // Copies A's scales of rows [first, first + rows), to the whole cluster if it shares A.
  __device__ static __forceinline__ void load_a(const float* scales, u32 stage, int first, int rows,
                                                u32 full) {
    if constexpr (cfg::kClusterN > 1) {
      tma::load_bulk_multicast(stage + first * 4, scales + first, rows * 4, full, kWholeCluster);
    } else {
      tma::load_bulk(stage, scales, rows * 4, full);
    }
  }

  __device__ static __forceinline__ void load_b(const float*, u32, int, int, u32) {}

  struct LaneScales {
    float value[kBlocks];

    // Loads those of K-block `block + lane`, if it lies before `end`.
    __device__ __forceinline__ void load(const Source& from, const Extents& e, const Tile& tile,
                                         int block, int end, int lane) {
      const int first = tile.n0 / 128;
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) {
        // Columns beyond n are zeros times any scale. The clamp only keeps reads inside the array.
        const int row = r == 0 ? first : min(first + r, ceil_div(e.n, 128) - 1);
        value[r] =
            load_f32_if(from.scale_b + row * from.scale_b_ld + block + lane, block + lane < end);
      }
    }
    // Writes them into a stage, one for each segment.
    __device__ __forceinline__ void store(u32 stage, const Tile& tile) const {
      const int offset = tile.n0 % 128;
#pragma unroll
      for (int i = 0; i < kScalesB; ++i) {
        const int row = (offset + i * kSegment) / 128;
        float scale = value[0];
#pragma unroll
        for (int r = 1; r < kBlocks; ++r) scale = row == r ? value[r] : scale;
        store_shared_f32(stage + i * 4, scale);
      }
    }
  };

  struct BlockScales {
    __device__ __forceinline__ BlockScales(const ConsumerThread&, int, int) {}
  };

  // The scales of a thread's two rows, each times those of B.
  struct Factors {
    float upper[kScalesOfWarp];
    float lower[kScalesOfWarp];
    __device__ __forceinline__ float last_read() const { return lower[kScalesOfWarp - 1]; }
  };

  struct StageScales {
    float upper, lower;
    float b[kScalesOfWarp];

    __device__ __forceinline__ StageScales(const ConsumerThread& self, int stage, int strip,
                                           int block) {
      const u32 address = self.smem.scales_b(stage);
      if constexpr (kScalesB == 1) {
        b[0] = load_shared_f32(address);
      } else if constexpr (kWarpColumns < cfg::kBlockN) {
#pragma unroll
        for (int i = 0; i < kScalesOfWarp; ++i) {
          b[i] = load_shared_f32(address + (self.first_column() + kGroup * i) / kSegment * 4);
        }
      } else {
#pragma unroll
        for (int first = 0; first < kScalesB; first += 4) {
          const Floats4 four = load_shared_16(address + first * 4);
#pragma unroll
          for (int i = first; i < min(first + 4, kScalesB); ++i) b[i] = four.value[i - first];
        }
      }
      const u32 a = self.smem.scales_a(stage) + (self.scale_row + strip * kStripStep) * 4;
      upper = Format::decode(load_shared_f32(a), block);
      lower = Format::decode(load_shared_f32(a + 8 * 4), block);
    }
    __device__ __forceinline__ Factors factors() const {
      Factors result;
#pragma unroll
      for (int r = 0; r < kScalesOfWarp; ++r) {
        result.upper[r] = __fmul_rn(upper, b[r]);
        result.lower[r] = __fmul_rn(lower, b[r]);
      }
      return result;
    }
  };

  // acc = fma(partial, sa * sb, acc). kSums: a thread's sums of 64 rows, half the tile's columns.
  template <int kSums, int kPartial>
  __device__ static __forceinline__ float promote(float (&acc)[kSums],
                                                  const float (&partial)[kPartial],
                                                  const Factors& factors, const BlockScales&,
                                                  int first = 0) {
    // One flat loop: nested by segment, ptxas kept the accumulators of some widths in local memory.
#pragma unroll
    for (int j = 0; j < kPartial / 4; ++j) {
      const int at = first + 4 * j;
      const float u = factors.upper[at / 4 * kScalesOfWarp / (kSums / 4)];
      const float l = factors.lower[at / 4 * kScalesOfWarp / (kSums / 4)];
      two::multiply_add(acc[at + 0], acc[at + 1], partial[4 * j + 0], partial[4 * j + 1], u, u);
      two::multiply_add(acc[at + 2], acc[at + 3], partial[4 * j + 2], partial[4 * j + 3], l, l);
    }
    return factors.last_read();
  }

  template <int kSums>
  __device__ static __forceinline__ void finish(const Source&, const ConsumerThread&, const Tile&,
                                                const Limits&, float (&)[kStrips][kSums]) {}
};

}  // namespace gemm::scale
