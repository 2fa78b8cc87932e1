// Scale policy: MX by WGMMA. mx_scales.cuh writes the scales into a stage, and block_b.cuh has the
// contract of a scale policy.
//
// The policy has a main loop of its own. It has two WGMMA groups of a K-block in flight, because a
// group of 32 of K takes less time than its promotion. None is in flight from one K-block to the
// next: ptxas would run them one after the other (C7514), and another consumer multiplies
// meanwhile.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/scale/mx_scales.cuh"
#include "gemm/wgmma_blocks.cuh"
#endif

namespace gemm::scale {

template <int kRowsOfB>
struct Mx : MxScales<kRowsOfB> {
  using Base = MxScales<kRowsOfB>;
  using typename Base::Rows;
  enum : int {
    kOwnLoop = true,
    kWordParts = Base::kWordParts,
    kPaddedB = Base::kPaddedB,
    kPartBytesB = Base::kPartBytesB,
    kUsualOffset = Base::kUsualOffset,
  };

  // acc = fma(partial * sa, sb, acc) with a scale of B for each column, whose part begins at `b`.
  // Returns the scale that was read last.
  template <int kSums>
  __device__ static __forceinline__ float promote_columns(float (&acc)[kSums],
                                                          const float (&partial)[kSums],
                                                          const Rows& rows, u32 b) {
    float last_read = 0;
#pragma unroll
    for (int q = 0; q < kSums / 8; ++q) {
      const Floats4 four = load_shared_16(b + q * 64);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float scaled = __fmul_rn(partial[8 * q + i], rows.of(i % 4));
        acc[8 * q + i] = __fmaf_rn(scaled, four.value[i / 4 * 2 + i % 2], acc[8 * q + i]);
      }
      last_read = four.value[3];
    }
    return last_read;
  }

  // Promotes as promote_columns does, with a scale of B for 32 columns.
  template <int kSums>
  __device__ static __forceinline__ float promote_blocks(float (&acc)[kSums],
                                                         const float (&partial)[kSums],
                                                         const Rows& rows, u32 b, bool usual) {
    float scales[kPaddedB];
#pragma unroll
    for (int first = 0; first < kPaddedB; first += 4) {
      const Floats4 four = load_shared_16(b + first * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) scales[first + i] = four.value[i];
    }
    if (usual) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const float factor = __fmul_rn(rows.of(i % 4), scales[i / 16]);
        acc[i] = __fmaf_rn(partial[i], factor, acc[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        acc[i] = __fmaf_rn(__fmul_rn(partial[i], rows.of(i % 4)), scales[i / 16], acc[i]);
      }
    }
    return scales[kPaddedB - 1];
  }

  // The main loop of a consumer. While a group of a K-block is promoted, the next one is
  // multiplied.
  template <int kSums>
  __device__ static __forceinline__ void multiply(const ConsumerThread& self, Ring& ring,
                                                  int k_blocks, int, float (&acc)[kStrips][kSums]) {
    static_assert(kParts == kWordParts, "a WGMMA group is a block of 32");
    float partial[2][kSums];
    u32 ready = 0;
#pragma unroll 1
    do {
      const int stage = ring.stage;
      mbarrier::wait_unless(ready, self.smem.full(stage), ring.phase);
      ring.advance();
      issue(self, stage, 0, partial[0]);
      const u32 b = self.smem.scales_b(stage);
      const bool usual = kRowsOfB > 1 && load_shared_f32(b + kUsualOffset) != 0;
      float last_read = 0;
#pragma unroll
      for (int group = 0; group < kBlockGroups; ++group) {
        const int strip = group / kParts, part = group % kParts;
        if (group + 1 < kBlockGroups) issue(self, stage, group + 1, partial[(group + 1) % 2]);
        const Rows rows(self, stage, strip, part);
        wgmma::wait_for<1>(group + 1 < kBlockGroups ? 1 : 0);
        wgmma::pin(partial[group % 2]);
        if (group + 1 == kBlockGroups) {
          ready = mbarrier::test(self.smem.full(ring.stage), ring.phase);
        }
        const u32 of_part = b + part * kPartBytesB;
        if constexpr (kRowsOfB == 1) {
          const u32 columns = of_part + self.lane % 4 * 16;
          last_read = promote_columns(acc[strip], partial[group % 2], rows, columns);
        } else {
          last_read = promote_blocks(acc[strip], partial[group % 2], rows, of_part, usual);
        }
      }
      release_stage(self, stage, has_come(last_read));
    } while (--k_blocks > 0);
  }
};

}  // namespace gemm::scale
