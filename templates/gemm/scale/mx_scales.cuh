// Common parts of the scale policies of MX: writing the scales into a stage, and their layout
// there. A has an E8M0 scale for every row and 32 of K (1x32). B has the same, or one for 32 rows
// and 32 of K (32x32); kRowsOfB says which. A scale of code e is 2^(e - 127), and 255 is NaN.
// block_b.cuh has the contract of a scale policy; mx.cuh promotes sums of WGMMA, mx_parts.cuh those
// of warps that multiply by themselves.
//
// The scales of a row are contiguous along K, so those of a K-block are one word of four bytes, and
// the next row's word is a row of scales further. TMA copies nothing that small. The scale warp
// gathers the words, decodes them and writes fp32 into the stage: for each of the four blocks of 32
// of a K-block (parts) the scales of all rows.
//
//   acc = fma(partial * sa, sb, acc)
//
// The product of partial and sa is exact unless sa is so far from 1 that it leaves fp32's range. A
// stage is usual if its scales are about 2^-64 to 2^64 (is_usual). There fma(partial, sa * sb, acc)
// has the same bits, and takes one instruction less for each sum if a scale of B serves 32 columns.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/producer.cuh"
#include "gemm/scale/format.cuh"
#endif

namespace gemm::scale {

template <int kRowsOfB>
struct MxScales {
  using FormatA = Fp32;
  using FormatB = Fp32;
  enum : int {
    kAtEnd = false,
    kWordParts = 4,  // blocks of 32 in a K-block
    kScalesB = cfg::kBlockN / kRowsOfB,
    kPaddedB = ceil_div(kScalesB, 4) * 4,
    kPartBytesA = cfg::kBlockM * 4,
    kPartBytesB = kPaddedB * 4,
    kUsualOffset = kWordParts * kPartBytesB,  // in B's scales: whether the stage is usual
    kScaleAStageBytes = kWordParts * kPartBytesA,
    kScaleBStageBytes = kUsualOffset + 16,
    kCopiedPerRowOfA = 0,
    kCopiedPerRowOfB = 0,
    kHasScaleWarp = true,
    kPromotesFromStage = true,
    kReadsAhead = false,
    kLanesHoldRows = true,
    kAhead = 1,
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

  __device__ static __forceinline__ void clear_stages(const SharedMemory&, int) {}

  // The words of rows lane, lane + 32, .. of the tile in one K-block.
  struct LaneWords {
    struct Place {
      const Source& from;
      const Extents& e;
      Tile tile;
    };
    u32 a[kWordsA];
    u32 b[kWordsB];

    template <typename Walk>
    __device__ static __forceinline__ Place place(const Source& from, const Extents& e,
                                                  const Tile& tile) {
      return {from, e, tile};
    }
    // Rows outside the matrix have the last row's.
    __device__ __forceinline__ void load(const Place& place, int block, int lane) {
      const auto& [from, e, tile] = place;
      const int last_b = ceil_div(e.n, static_cast<int>(kRowsOfB)) - 1;
#pragma unroll
      for (int i = 0; i < kWordsA; ++i) {
        a[i] = word(from.scale_a, from.scale_a_ld, min(tile.m0 + lane + 32 * i, e.m - 1), block);
      }
#pragma unroll
      for (int i = 0; i < kWordsB; ++i) {
        b[i] = word(from.scale_b, from.scale_b_ld, min(tile.n0 / kRowsOfB + lane + 32 * i, last_b),
                    block);
      }
      // A row's padding behind the end of K may hold anything, even NaN.
      const int parts = ceil_div(e.k - block * 128, 32);
      if (parts < kWordParts) {
#pragma unroll
        for (int i = 0; i < kWordsA; ++i) a[i] = cut(a[i], parts);
#pragma unroll
        for (int i = 0; i < kWordsB; ++i) b[i] = cut(b[i], parts);
      }
    }

   private:
    __device__ static __forceinline__ u32 word(const float* scales, i64 row_bytes, int row,
                                               int block) {
      const auto* bytes = reinterpret_cast<const u8*>(scales);
      return static_cast<u32>(
          load_global_i32(reinterpret_cast<const int*>(bytes + row * row_bytes + block * 4)));
    }
    // Returns the word with scales of 1 behind the first `parts`.
    __device__ static __forceinline__ u32 cut(u32 word, int parts) {
      const u32 kept = (1u << parts * 8) - 1;
      return (word & kept) | (0x7f7f7f7fu & ~kept);
    }
  };

  // Returns where in a part the scale of a row of B is. A thread has columns 8 * j + 2 * (lane % 4)
  // and the next of D. Its four of 16 lie side by side, so that one load reads them.
  __device__ static __forceinline__ int place_of(int row) {
    if constexpr (kRowsOfB > 1) return row;
    return row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2;
  }

  // The scale warp writes them decoded.
  struct LaneRows : LaneWords {
    using LaneWords::a;
    using LaneWords::b;

    __device__ __forceinline__ void store(u32 stage_a, u32 stage_b, int, int lane) const {
      const bool usual = __any_sync(0xffffffffu, is_usual() ? 0 : 1) == 0;
      if (usual) {
        store_decoded<true>(stage_a, stage_b, lane);
      } else {
        store_decoded<false>(stage_a, stage_b, lane);
      }
      if (lane == 0) store_shared_f32(stage_b + kUsualOffset, usual ? 1.0f : 0.0f);
    }

   private:
    // Returns true if all scales of A are 2^-63 to 2^64 and those of B 2^-64 to 2^63: their codes'
    // two upper bits, of B those of the next code, differ. A product of two is then in fp32.
    __device__ __forceinline__ bool is_usual() const {
      u32 differ = 0x80808080u;
#pragma unroll
      for (int i = 0; i < kWordsA; ++i) differ &= a[i] ^ a[i] << 1;
#pragma unroll
      for (int i = 0; i < kWordsB; ++i) {
        const u32 next = b[i] + 0x01010101u;
        differ &= next ^ next << 1;
      }
      return differ == 0x80808080u;
    }

    template <bool kUsual>
    __device__ __forceinline__ void store_decoded(u32 stage_a, u32 stage_b, int lane) const {
#pragma unroll
      for (int i = 0; i < kWordsA; ++i) {
        const int row = lane + 32 * i;
        if (row < cfg::kBlockM) store_parts<kUsual, kPartBytesA>(stage_a + row * 4, a[i]);
      }
#pragma unroll
      for (int i = 0; i < kWordsB; ++i) {
        const int row = lane + 32 * i;
        if (row < kScalesB) store_parts<kUsual, kPartBytesB>(stage_b + place_of(row) * 4, b[i]);
      }
    }

    // Code 0 is subnormal in fp32.
    template <bool kUsual>
    __device__ static __forceinline__ float decode(u32 word, int part) {
      const u32 exponent = word >> part * 8 & 0xffu;
      if (kUsual) return __uint_as_float(exponent << 23);
      return __uint_as_float(exponent == 0     ? 0x00400000u
                             : exponent == 255 ? 0x7fffffffu
                                               : exponent << 23);
    }
    template <bool kUsual, int kPartBytes>
    __device__ static __forceinline__ void store_parts(u32 address, u32 word) {
#pragma unroll
      for (int part = 0; part < kWordParts; ++part) {
        store_shared_f32(address + part * kPartBytes, decode<kUsual>(word, part));
      }
    }
  };

  // The scales of a thread's two rows of A.
  struct Rows {
    float upper, lower;
    __device__ __forceinline__ Rows(const ConsumerThread& self, int stage, int strip, int part) {
      const u32 a = self.smem.scales_a(stage) + part * kPartBytesA +
                    (self.scale_row + strip * kStripStep) * 4;
      upper = load_shared_f32(a);
      lower = load_shared_f32(a + 8 * 4);
    }
    __device__ __forceinline__ float of(int i) const { return i < 2 ? upper : lower; }
  };
};

}  // namespace gemm::scale
