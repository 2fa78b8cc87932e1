// How MX scales come into a stage for a policy that reads their codes (inside.cuh): a word of four
// E8M0 codes, those of the K-block's four blocks of 32, for each row of A, and for each row of B
// (kRowsOfB = 1) or 32 of them. The scale warp gathers the words as for the policies that promote
// (mx_scales.cuh) and leaves them as they are. block_b.cuh has the contract of a scale policy.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/scale/mx_scales.cuh"
#endif

namespace gemm::scale {

// A word of codes as it lies in memory.
struct E8m0x4 {
  enum : int { kBlocksOfWord = 1 };
};

template <int kRowsOfB>
struct StagedMx : MxScales<kRowsOfB> {
  using Scales = MxScales<kRowsOfB>;
  using FormatA = E8m0x4;
  using FormatB = E8m0x4;
  enum : int {
    kScaleAStageBytes = cfg::kBlockM * 4,
    kScaleBStageBytes = Scales::kScalesB * 4,
    kPromotesFromStage = false,
    kPromotesParts = false,
  };

  struct LaneRows : Scales::LaneWords {
    __device__ __forceinline__ void store(u32 stage_a, u32 stage_b, int, int lane) const {
      store_words<cfg::kBlockM>(stage_a, this->a, lane);
      store_words<Scales::kScalesB>(stage_b, this->b, lane);
    }

   private:
    // Writes the words of rows lane, lane + 32, .. below kRows.
    template <int kRows, int kWords>
    __device__ static __forceinline__ void store_words(u32 address, const u32 (&words)[kWords],
                                                       int lane) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int row = lane + 32 * i;
        if (row < kRows) store_shared_i32(address + row * 4, static_cast<int>(words[i]));
      }
    }
  };
};

}  // namespace gemm::scale
