// Scale policy: A and B have 1x128 scales that are powers of two, and the tensor core multiplies
// them. The factors of a strip are the outer product of its scales of A and those of B, which are
// the columns of D. An instruction of bf16 with K = 16 computes them, of which only the first
// element of K is not zero: one product of two powers of two, which is exact. A promotion is then
// one instruction for each sum, and reads nothing. D has the same bits as with row_b.cuh.
// block_b.cuh has the contract of a scale policy.
//
// The scale warp writes the scales as operands of that instruction: without swizzle, by 8 rows
// (core matrices), each with 16 bytes of a row for the first half of K, and as much for the second.
// All but the scales is zero, and is written once.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/wgmma_blocks.cuh"
#include "lib/outer.cuh"
#endif

namespace wgmma {
OCTILE_INSTANTIATE_MMA_OUTER(OCTILE_WGMMA_N)
}  // namespace wgmma

namespace gemm::scale {

struct OuterRowB {
  using FormatA = Fp32;
  using FormatB = Fp32;
  enum : int {
    kAtEnd = false,
    kRowBytes = 32,  // of both halves of K
    kScaleAStageBytes = cfg::kBlockM * kRowBytes,
    kScaleBStageBytes = cfg::kBlockN * kRowBytes,
    kCopiedPerRowOfA = 0,
    kCopiedPerRowOfB = 0,
    kHasScaleWarp = true,
    kPromotesFromStage = false,
    kReadsAhead = false,
    kOwnLoop = true,
    kLanesHoldRows = true,
    kAhead = 2,  // K-blocks whose scales the scale warp has in registers
  };
  static_assert(kParts == 1 && cfg::kBlockM >= 64, "factors are those of 64 rows and a K-block");

  __device__ static __forceinline__ void load_a(const float*, u32, int, int, u32) {}
  __device__ static __forceinline__ void load_b(const float*, u32, int, int, u32) {}

  template <int kSums>
  __device__ static __forceinline__ void finish(const Source&, const ConsumerThread&, const Tile&,
                                                const Limits&, float (&)[kStrips][kSums]) {}

  // ---- the scale warp

  // The scales of rows lane, lane + 32, .. of an operand's tile in one K-block.
  template <int kRows>
  struct LaneScales {
    float value[ceil_div(kRows, 32)];

    // Rows behind the last one have its scale: their sums are not stored.
    __device__ __forceinline__ void load(const float* scales, int last_row, int lane) {
#pragma unroll
      for (int i = 0; i < ceil_div(kRows, 32); ++i) {
        value[i] = load_global_4_if(true, scales + min(lane + 32 * i, last_row));
      }
    }
    // Writes their upper halves, which are bf16, with a zero behind each.
    __device__ __forceinline__ void store(u32 stage, int lane) const {
#pragma unroll
      for (int i = 0; i < ceil_div(kRows, 32); ++i) {
        const int row = lane + 32 * i;
        if (kRows % 32 == 0 || row < kRows) {
          store_shared_f32(stage + row / 8 * (8 * kRowBytes) + row % 8 * 16,
                           __uint_as_float(__float_as_uint(value[i]) >> 16));
        }
      }
    }
  };

  // Several stores are under way at once, because the first K-block waits for them.
  template <int kBytes>
  __device__ static __forceinline__ void clear(u32 address, int lane) {
    static_assert(kBytes % (32 * 8) == 0, "tiles have multiples of eight rows and columns");
#pragma unroll 8
    for (int i = 0; i < kBytes / (32 * 8); ++i)
      store_shared_8(address + static_cast<u32>(32 * i + lane) * 8, 0, 0);
  }

  __device__ static __forceinline__ void clear_stages(const SharedMemory& smem, int lane) {
    clear<cfg::kStages * cfg::kScaleAStageBytes>(smem.scales_a(0), lane);
    clear<cfg::kStages * cfg::kScaleBStageBytes>(smem.scales_b(0), lane);
    __syncwarp();
  }

  struct LaneRows {
    struct Place {
      const float *a, *b;
      i64 a_ld, b_ld;
      int last_a, last_b;
    };
    LaneScales<cfg::kBlockM> a;
    LaneScales<cfg::kBlockN> b;

    template <typename Walk>
    __device__ static __forceinline__ Place place(const Source& from, const Extents& e,
                                                  const Tile& tile) {
      const float* scales_b = from.scale_b + tile.n0;
      if constexpr (Walk::kBatched) scales_b += Walk::scales_before(from, tile);
      return {Walk::scales_of_a(from, e, tile, ceil_div(e.k, 128)),
              scales_b,
              from.scale_a_ld,
              from.scale_b_ld,
              Walk::scaled_rows(e, tile) - 1,
              e.n - 1 - tile.n0};
    }
    __device__ __forceinline__ void load(const Place& place, int block, int lane) {
      a.load(place.a + block * place.a_ld, place.last_a, lane);
      b.load(place.b + block * place.b_ld, place.last_b, lane);
    }
    __device__ __forceinline__ void store(u32 stage_a, u32 stage_b, int, int lane) const {
      a.store(stage_a, lane);
      b.store(stage_b, lane);
      tma::fence_async_shared();
    }
  };

  // ---- consumers

  // acc = fma(partial, sa * sb, acc). The factors are computed in front of the sums, in one group.
  template <int kSums>
  __device__ static __forceinline__ void multiply(const ConsumerThread& self, Ring& ring,
                                                  int k_blocks, int, float (&acc)[kStrips][kSums]) {
    float partial[kSums], factors[kSums];
    u32 ready = 0;
#pragma unroll(cfg::kUnroll)
    do {
      const int stage = ring.stage;
      mbarrier::wait_unless(ready, self.smem.full(stage), ring.phase);
      ring.advance();
      const u32 a = self.smem.scales_a(stage) + self.index * (kRowsPerConsumer * kRowBytes);
      const u32 b = wgmma::outer_descriptor(self.smem.scales_b(stage));
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        wgmma::MmaOuter<2 * kSums>::issue(factors,
                                          wgmma::outer_descriptor(a + strip * (64 * kRowBytes)), b);
        issue(self, stage, strip, partial);
        wgmma::wait<0>();
        wgmma::pin(factors);
        wgmma::pin(partial);
        if (strip == kStrips - 1) {
          release_stage(self, stage, true);
          ready = mbarrier::test(self.smem.full(ring.stage), ring.phase);
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          acc[strip][i] = __fmaf_rn(partial[i], factors[i], acc[strip][i]);
        }
      }
    } while (--k_blocks > 0);
  }
};

}  // namespace gemm::scale
