// How MX scales come into a stage for a policy that reads their codes (inside.cuh): a word of four
// E8M0 codes, those of the K-block's four blocks of 32, for each row of A, and for each row of B
// (kRowsOfB = 1) or 32 of them. block_b.cuh has the contract of a scale policy.
//
// The scales of a row are contiguous along K and the next row's word is a row of scales further.
// TMA copies nothing that small, so the scale warp gathers the words.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/producer.cuh"
#include "gemm/scale/format.cuh"
#endif

namespace gemm::scale {

// A word of codes as it lies in memory.
struct E8m0x4 {
  enum : int { kBlocksOfWord = 1 };
};

template <int kRowsOfB>
struct StagedMx {
  using FormatA = E8m0x4;
  using FormatB = E8m0x4;
  enum : int {
    kAtEnd = false,
    kScalesB = cfg::kBlockN / kRowsOfB,
    kScaleAStageBytes = cfg::kBlockM * 4,
    kScaleBStageBytes = kScalesB * 4,
    kCopiedPerRowOfA = 0,
    kCopiedPerRowOfB = 0,
    kHasScaleWarp = true,
    kPromotesFromStage = false,
    kReadsAhead = false,
    kPromotesParts = false,
    kOwnScaleWarp = true,
    // Words of a K-block that a lane of the scale warp brings.
    kWordsA = ceil_div(cfg::kBlockM, 32),
    kWordsB = ceil_div(kScalesB, 32),
  };

  // TMA copies no scales.
  __device__ static __forceinline__ void load_a(const float*, u32, int, int, u32) {}
  __device__ static __forceinline__ void load_b(const float*, u32, int, int, u32) {}

  template <int kSums>
  __device__ static __forceinline__ void finish(const Source&, const ConsumerThread&, const Tile&,
                                                const Limits&, float (&)[kStrips][kSums]) {}

  // Returns the word of a row in a K-block, with scales of 1 behind its first `parts` codes: behind
  // the end of K a row's padding may hold anything, even NaN.
  __device__ static __forceinline__ u32 word(const float* scales, i64 row_bytes, int row, int block,
                                             int parts) {
    const auto* bytes = reinterpret_cast<const u8*>(scales);
    const auto codes = static_cast<u32>(
        load_global_i32(reinterpret_cast<const int*>(bytes + row * row_bytes + block * 4)));
    if (parts >= 4) return codes;
    const u32 kept = (1u << parts * 8) - 1;
    return (codes & kept) | (0x7f7f7f7fu & ~kept);
  }

  // The scale warp: all lanes gather the words of a K-block before its stage is empty. Rows outside
  // the matrix have the last row's: their sums are not stored.
  template <typename Walk>
  __device__ static __forceinline__ void publish(const SharedMemory& smem, const Source& from,
                                                 const Extents& e, int rank, int) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const KRange range = Walk::k_range(e, rank);
    const int last_b = ceil_div(e.n, static_cast<int>(kRowsOfB)) - 1;
    Ring ring;
    wait_for_previous_kernel();
#pragma unroll 1
    for (auto position = Walk::first(e, smem); position.valid(); position.advance()) {
      Tile tile;
      Walk::origin(position, e, rank, tile);
#pragma unroll 1
      for (int block = range.first; block < range.last; ++block) {
        const int parts = ceil_div(e.k - block * 128, 32);
        u32 a[kWordsA], b[kWordsB];
#pragma unroll
        for (int i = 0; i < kWordsA; ++i) {
          const int row = min(tile.m0 + lane + 32 * i, e.m - 1);
          a[i] = word(from.scale_a, from.scale_a_ld, row, block, parts);
        }
#pragma unroll
        for (int i = 0; i < kWordsB; ++i) {
          const int row = min(tile.n0 / kRowsOfB + lane + 32 * i, last_b);
          b[i] = word(from.scale_b, from.scale_b_ld, row, block, parts);
        }
        mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);
        const u32 to_a = smem.scales_a(ring.stage), to_b = smem.scales_b(ring.stage);
#pragma unroll
        for (int i = 0; i < kWordsA; ++i) {
          const int row = lane + 32 * i;
          if (row < cfg::kBlockM) store_shared_i32(to_a + row * 4, static_cast<int>(a[i]));
        }
#pragma unroll
        for (int i = 0; i < kWordsB; ++i) {
          const int row = lane + 32 * i;
          if (row < kScalesB) store_shared_i32(to_b + row * 4, static_cast<int>(b[i]));
        }
        __syncwarp();
        if (lane == 0) mbarrier::arrive(smem.full(ring.stage));
        ring.advance();
      }
    }
  }
};

}  // namespace gemm::scale
