// Scale policy: MX by warps that multiply by themselves. An instruction of mma.sync has 32 of K, so
// each of a K-block's four parts is one instruction from zero and one promotion:
// acc = fma(partial * sa, sb, acc). mx_scales.cuh has how the scales come into a stage, and
// block_b.cuh the contract of a scale policy.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/scale/mx_scales.cuh"
#include "lib/pairs.cuh"
#endif

namespace gemm::scale {

template <int kRowsOfB>
struct MxParts : MxScales<kRowsOfB> {
  using Base = MxScales<kRowsOfB>;
  enum : int {
    kOwnLoop = false,
    kPromotesParts = true,
    kWordParts = Base::kWordParts,
    kPartBytesB = Base::kPartBytesB,
  };
  static_assert(kParts == kWordParts, "an instruction has a block of 32");

  // The place of B's scales in a stage.
  struct BlockScales {
    u32 address;
    int column;  // the warp's first
    int pair;    // of columns, the lane's in each group of 8

    __device__ __forceinline__ BlockScales(const ConsumerThread& self, int stage, int)
        : address(self.smem.scales_b(stage)), column(self.first_column()), pair(self.lane % 4) {}

    // Reads those of the lane's columns in a part, of the groups of 8 columns from `first` of the
    // warp's on.
    template <int kGroups>
    __device__ __forceinline__ void read(int part, int first, Floats2 (&groups)[kGroups]) const {
      const u32 of_part = address + static_cast<u32>(part * kPartBytesB);
      if constexpr (kRowsOfB == 1 && kGroups == 2 && kWarpColumns % 16 == 0) {
        const Floats4 four = load_shared_16(of_part + place(column + first));
        groups[0] = {{four.value[0], four.value[1]}};
        groups[1] = {{four.value[2], four.value[3]}};
      } else {
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const int at = column + first + 8 * i;
          if constexpr (kRowsOfB == 1) {
            groups[i] = load_shared_8(of_part + place(at));
          } else {
            const float scale = load_shared_f32(of_part + static_cast<u32>(at / kRowsOfB * 4));
            groups[i] = {{scale, scale}};
          }
        }
      }
    }

   private:
    __device__ __forceinline__ u32 place(int at) const {
      return static_cast<u32>(Base::place_of(at + 2 * pair) * 4);
    }
  };

  // The scales of a thread's two rows in each part.
  struct Factors {
    float upper[kWordParts], lower[kWordParts];
  };
  struct StageScales {
    Factors rows;
    __device__ __forceinline__ StageScales(const ConsumerThread& self, int stage, int strip, int) {
#pragma unroll
      for (int part = 0; part < kWordParts; ++part) {
        const typename Base::Rows of_part(self, stage, strip, part);
        rows.upper[part] = of_part.upper;
        rows.lower[part] = of_part.lower;
      }
    }
    __device__ __forceinline__ const Factors& factors() const { return rows; }
  };

  // Adds a part's sums to those from acc[first] on.
  template <int kPart, int kSums, int kPartial>
  __device__ static __forceinline__ void promote_part(float (&acc)[kSums],
                                                      const float (&partial)[kPartial],
                                                      const Factors& factors,
                                                      const BlockScales& scales, int first) {
    Floats2 of_columns[kPartial / 4];
    scales.read(kPart, 2 * first, of_columns);
#pragma unroll
    for (int i = 0; i < kPartial; ++i) {
      const float of_row = i % 4 < 2 ? factors.upper[kPart] : factors.lower[kPart];
      acc[first + i] =
          __fmaf_rn(__fmul_rn(partial[i], of_row), of_columns[i / 4].value[i % 2], acc[first + i]);
    }
  }
};

}  // namespace gemm::scale
