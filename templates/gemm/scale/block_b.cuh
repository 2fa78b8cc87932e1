// Scale policy: A has a scale for every row and K-block (1x128), B one for every 128 columns and
// K-block (128x128). A stage holds A's scales as TMA copied them, and as many of B's as the tile
// may need.
//
// Contract of a scale policy:
//   kScaleAStageBytes, kScaleBStageBytes  bytes of scales of A and B in a stage
//   kHasScaleWarp          whether a producer warp writes scales: one more arrival at `full`
// Copy thread (one thread; may issue copies that complete on `full`):
//   copied_bytes(rows)     bytes of scales that the copies of one stage bring
//   Cursor                 where the next K-block's scales lie in global memory; 2 registers
// Scale warp (all 32 lanes; touches no barrier itself):
//   Publisher              scales in registers, on their way from global memory to the stages
// Consumer (all threads of a warpgroup; no barrier; between `full` and `empty` of the stage):
//   StageScales            reads the scales of one WGMMA group from the stage
//   factors()              what promote multiplies by; lives until the group is promoted
//   promote(acc, partial, factors)  adds a group's partial sums to the fp32 sums
//   finish(acc)            after a tile's last K-block
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/producer.cuh"
#endif

namespace gemm::scale {

struct BlockB {
  // Columns sure to lie in one scale block of 128, whatever the tile's first column; and how many
  // blocks a tile can touch.
  static constexpr int kSegment = gcd(cfg::kBlockN, 128);
  static constexpr int kBlocks = ceil_div(cfg::kBlockN - kSegment, 128) + 1;
  // Scales of B in a stage: one if the tile lies in one block, else one for each segment.
  static constexpr int kScalesB = kBlocks == 1 ? 1 : cfg::kBlockN / kSegment;
  static constexpr int kScaleAStageBytes = cfg::kBlockM * 4;
  static constexpr int kScaleBStageBytes = kScalesB * 4;
  static constexpr int kCopiedPerRowOfA = 4;
  static constexpr int kCopiedOfB = 0;
  static constexpr bool kHasScaleWarp = true;

  // Copies A's scales of rows [first, first + rows), to the whole cluster if it shares A.
  __device__ static __forceinline__ void load_a(const float* scales, u32 stage, int first, int rows,
                                                u32 full) {
    if constexpr (cfg::kClusterN > 1) {
      tma::load_bulk_multicast(stage + first * 4, scales + first, rows * 4, full, kWholeCluster);
    } else {
      tma::load_bulk(stage, scales, rows * 4, full);
    }
  }

  __device__ static __forceinline__ void load_b(u32, const Source&, const Tile&, int) {}

  // B's scales of 32 K-blocks, each lane those of one.
  struct LaneScales {
    float value[kBlocks];

    __device__ __forceinline__ void load(const Source& from, const Extents& e, int n0, int block,
                                         int end, int lane) {
      const int first = n0 / 128;
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) {
        // Columns beyond n are zeros times any scale. The clamp only keeps reads inside the array.
        const int row = r == 0 ? first : min(first + r, ceil_div(e.n, 128) - 1);
        value[r] =
            load_f32_if(from.scale_b + row * from.scale_b_ld + block + lane, block + lane < end);
      }
    }
    // Writes one K-block's scales, one for each segment. `offset`: the tile's first column within
    // its scale block.
    __device__ __forceinline__ void store(u32 address, int offset) const {
#pragma unroll
      for (int i = 0; i < kScalesB; ++i) {
        const int row = (offset + i * kSegment) / 128;
        float scale = value[0];
#pragma unroll
        for (int r = 1; r < kBlocks; ++r) scale = row == r ? value[r] : scale;
        store_shared_f32(address + i * 4, scale);
      }
    }
  };

  // The first scales of a tile are loaded as many stages ahead of the WGMMAs as its copies, the
  // following ones 32 K-blocks ahead.
  struct Publisher {
    LaneScales current, next;

    __device__ __forceinline__ Publisher(const Source& from, const Extents& e, const Tile& tile,
                                         const KRange& range, int lane) {
      next.load(from, e, tile.n0, range.first, range.last, lane);
    }
    __device__ __forceinline__ void fetch(const Source& from, const Extents& e, const Tile& tile,
                                          int block, const KRange& range, int lane) {
      current = next;
      next.load(from, e, tile.n0, block + 32, range.last, lane);
    }
    __device__ __forceinline__ void store(u32 stage, const Tile& tile) const {
      current.store(stage, tile.n0 % 128);
    }
  };

  // The scales of a thread's two rows, each times those of B.
  struct Factors {
    float upper[kScalesB];
    float lower[kScalesB];
  };

  // B's scales of one K-block, one for each segment of columns.
  struct SegmentScales {
    float value[kScalesB];
    __device__ __forceinline__ explicit SegmentScales(u32 address) {
      if constexpr (kScalesB == 1) {
        value[0] = load_shared_f32(address);
      } else {
#pragma unroll
        for (int first = 0; first < kScalesB; first += 4) {
          const Floats4 four = load_shared_16(address + first * 4);
#pragma unroll
          for (int i = first; i < min(first + 4, kScalesB); ++i) value[i] = four.value[i - first];
        }
      }
    }
  };

  struct StageScales {
    float upper, lower;
    SegmentScales b;

    __device__ __forceinline__ StageScales(const ConsumerThread& self, int stage, int strip)
        : b(self.smem.scales_b(stage)) {
      const u32 a = self.smem.scales_a(stage) + (self.scale_row + strip * 64) * 4;
      upper = load_shared_f32(a);
      lower = load_shared_f32(a + 8 * 4);
    }
    __device__ __forceinline__ Factors factors() const {
      Factors result;
#pragma unroll
      for (int r = 0; r < kScalesB; ++r) {
        result.upper[r] = __fmul_rn(upper, b.value[r]);
        result.lower[r] = __fmul_rn(lower, b.value[r]);
      }
      return result;
    }
  };

  // acc = fma(partial, sa * sb, acc). kSums: a thread's sums of 64 rows, half the tile's columns.
  template <int kSums>
  __device__ static __forceinline__ void promote(float (&acc)[kSums], const float (&partial)[kSums],
                                                 const Factors& factors) {
    // One flat loop: nested by segment, ptxas kept the accumulators of some widths in local memory.
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const float u = factors.upper[j * kScalesB / (kSums / 4)];
      const float l = factors.lower[j * kScalesB / (kSums / 4)];
      acc[4 * j + 0] = __fmaf_rn(partial[4 * j + 0], u, acc[4 * j + 0]);
      acc[4 * j + 1] = __fmaf_rn(partial[4 * j + 1], u, acc[4 * j + 1]);
      acc[4 * j + 2] = __fmaf_rn(partial[4 * j + 2], l, acc[4 * j + 2]);
      acc[4 * j + 3] = __fmaf_rn(partial[4 * j + 3], l, acc[4 * j + 3]);
    }
  }

  template <int kSums>
  __device__ static __forceinline__ void finish(float (&)[kStrips][kSums]) {}
};

}  // namespace gemm::scale
