// Output policy: D in FP8 with an fp32 scale for each row and 128 columns, quantised from the fp32
// sums as docs/numerics.md "Quantising" says: encode = max / amax, code = fp8(sum * encode), scale
// = 1 / encode. Codes go through shared memory to TMA, scales straight to memory. direct.cuh has
// the contract of an output policy.
//
// A warp holds 16 whole rows of a strip, and the four lanes of a quad share a row. So two shuffles
// find a row's amax.
#pragma once
#ifndef OCTILE_EMITTED
#include "gemm/consumer.cuh"
#include "gemm/output/boxes.cuh"
#include "gemm/output/watch.cuh"
#include "lib/codes.cuh"
#endif

namespace gemm::output {

// kE5M2: codes are E5M2, else E4M3. kPowerOfTwo: scales are powers of two. kSentry: the problem's
// sentry, which sees the sums. Box: how D's boxes are stored.
template <bool kE5M2, bool kPowerOfTwo, int kSentry, typename Box>
struct Quantized {
  enum : int {
    kBlockColumns = 128,  // columns of a scale and a box: 128 bytes, the widest swizzle
    kBoxBytes = kStripRows * kBlockColumns,
    kStagingBytes = cfg::kBlockM * cfg::kBlockN,
    // An empty sum has scales of 1, not of 0.
    kTakesEmptySums = true,
    kStoresOnce = false,
    kCountsOnce = kSentry == kSquaresSentry,
    kPrefetchesD = false
  };
  using Watching = Watch<kSentry>;
  static_assert(kConsumerColumns == kBlockColumns && !kHasTail, "one scale block across");

  template <int kSums>
  __device__ static __forceinline__ void store(const Destination& to, const ConsumerThread& self,
                                               const Tile& tile, const Limits& limits,
                                               float (&acc)[kStrips][kSums]) {
    wait_for_previous_kernel();
    const bool issuer = threadIdx.x % 128 == 0;
    // The preceding tile's store may still read the staging area.
    if (issuer) tma::wait_stores_read<0>();
    named_barrier(1 + self.index, 128);
    const int row = tile.m0 + self.first_row();
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      // With groups, the rows of B behind a group's are the next group's, not zero-filled ones.
      if constexpr (Box::kOfGroups || kSentry != kNoSentry) {
        clear_columns(acc[strip], limits.n - tile.n0);
      }
      const Scales encode = encode_scales(acc[strip], self);
      stage(acc[strip], encode, staging(self, self.box(strip)), self.box_row(strip), self);
      put_scale(to, self, tile, limits, row + strip * kStripStep, encode);
    }
    tma::fence_async_shared();
    named_barrier(1 + self.index, 128);
    if (issuer) {
#pragma unroll
      for (int box = 0; box < kStrips; ++box) {
        if (row + box * 64 < limits.m && tile.n0 < limits.n) {
          Box::store(to, tile.n0, row + box * 64, limits.m, staging(self, box));
        }
      }
      tma::commit_stores();
    }
    if constexpr (kSentry != kNoSentry) {
      Watching watch;
      watch.see_sums(self, tile, limits, acc);
      watch.square_sums(self, tile, limits, acc);
      watch.report(to, self);
    }
  }

  // Shared memory must outlive TMA's reads of it.
  __device__ static __forceinline__ void finish() {
    if (threadIdx.x % 128 == 0) tma::wait_stores_read<0>();
  }

  template <int kColumns>
  __host__ __device__ static constexpr int box_columns() {
    return kBlockColumns;
  }

 private:
  static constexpr u32 kAllLanes = 0xffffffffu;
  static constexpr u32 kInfinity = 0x7f800000u;
  static constexpr float kMax = kE5M2 ? kMaxE5M2 : kMaxE4M3;

  // Bits of a NaN that no operation gives.
  static constexpr u32 kWasInfinite = 0x400001u;

  // The encode scales of a thread's two rows. `infinite`: a sum of the warp's rows was infinite.
  struct Scales {
    float upper, lower, own;  // own: that of the row whose scale the lane stores
    bool infinite;
  };

  __device__ static __forceinline__ u32 staging(const ConsumerThread& self, int box) {
    return self.smem.d() + static_cast<u32>((self.index * kStrips + box) * kBoxBytes);
  }

  // Returns the largest magnitude of a row over the lanes that share it.
  __device__ static __forceinline__ float of_quad(float magnitude) {
    magnitude = fmaxf(magnitude, __shfl_xor_sync(kAllLanes, magnitude, 1));
    return fmaxf(magnitude, __shfl_xor_sync(kAllLanes, magnitude, 2));
  }

  // Finds the largest magnitudes of a thread's two rows over the lanes that share them. fmaxf
  // leaves NaNs out. Columns outside D do not count: their operands are zero-filled, so that their
  // sums are 0 or NaN.
  __device__ static __forceinline__ void magnitudes(const float* sums, float& upper, float& lower) {
    upper = lower = 0.0f;
#pragma unroll
    for (int i = 0; i < kBlockColumns / 2; i += 4) {
      upper = fmaxf(fmaxf(upper, fabsf(sums[i])), fabsf(sums[i + 1]));
      lower = fmaxf(fmaxf(lower, fabsf(sums[i + 2])), fabsf(sums[i + 3]));
    }
    upper = of_quad(upper);
    lower = of_quad(lower);
  }

  // Returns the encode scales of a thread's two rows. If a sum of the warp's rows is infinite, it
  // becomes a NaN: its code in E4M3 is that of a NaN, and in E5M2 mark_infinities() knows it.
  __device__ static __forceinline__ Scales encode_scales(float* sums, const ConsumerThread& self) {
    Scales scales;
    float upper, lower;
    magnitudes(sums, upper, lower);
    scales.infinite = __any_sync(kAllLanes, fmaxf(upper, lower) == __uint_as_float(kInfinity));
    if (scales.infinite) {
#pragma unroll
      for (int i = 0; i < kBlockColumns / 2; ++i) sums[i] = without_infinity(sums[i]);
      magnitudes(sums, upper, lower);
    }
    // Even lanes divide for the upper row, odd lanes for the lower.
    const bool odd = self.lane % 2;
    scales.own = encode_scale(odd ? lower : upper);
    const float other = __shfl_xor_sync(kAllLanes, scales.own, 1);
    scales.upper = odd ? other : scales.own;
    scales.lower = odd ? scales.own : other;
    return scales;
  }

  // Returns x, or a NaN if x is infinite. In E5M2 the NaN has the sign of x and kWasInfinite.
  __device__ static __forceinline__ float without_infinity(float x) {
    if constexpr (!kE5M2) return __fmaf_rn(x, 0.0f, x);
    const u32 bits = __float_as_uint(x);
    return __uint_as_float((bits & 0x7fffffffu) == kInfinity ? bits | kWasInfinite : bits);
  }

  // Returns the encode scale of a block of fp32 values whose finite amax is given, as
  // quantize::Rule does.
  __device__ static __forceinline__ float encode_scale(float amax) {
    if (amax == 0.0f) return 1.0f;
    u32 bits = __float_as_uint(__fdiv_rn(kMax, amax));
    if (bits == kInfinity) bits = 0x7f7fffffu;  // the largest finite fp32
    if constexpr (kPowerOfTwo) bits &= 0xff800000u;
    return __uint_as_float(bits);
  }

  // Stores the scales of the warp's 16 rows. Without groups it also stores 1 for those from D's
  // last row up to the next multiple of 4; with groups these are the next group's. `row` is the
  // strip's first.
  __device__ static __forceinline__ void put_scale(const Destination& to,
                                                   const ConsumerThread& self, const Tile& tile,
                                                   const Limits& limits, int row,
                                                   const Scales& encode) {
    const int own = row + self.warp * kWarpRows + self.lane / 4 + self.lane % 2 * 8;
    const int padded = Box::kOfGroups ? limits.m : ceil_div(limits.m, 4) * 4;
    const int end = min(padded, tile.m0 + cfg::kBlockM);
    if (self.lane % 4 >= 2 || own >= end || tile.n0 >= limits.n) return;
    to.d_scale[tile.n0 / kBlockColumns * to.scale_d_ld + own] =
        own < limits.m ? __frcp_rn(encode.own) : 1.0f;
  }

  // Returns the codes of four sums of a row, the first in the lowest byte.
  __device__ static __forceinline__ u32 codes(float a, float b, float c, float d, float encode) {
    a = __fmul_rn(a, encode);
    b = __fmul_rn(b, encode);
    c = __fmul_rn(c, encode);
    d = __fmul_rn(d, encode);
    return kE5M2 ? e5m2x4(a, b, c, d) : e4m3x4(a, b, c, d);
  }

  // Writes a block's codes into its box: rows of 128 bytes, whose 16-byte units are XORed with row
  // % 8. A thread has two codes in each half of a unit. Even lanes take the left halves of their
  // neighbour and give the right ones, so that each lane writes four codes at once. The four lanes
  // of a row fill a unit and the eight rows all units of 128 bytes, so no two lanes meet in a bank.
  // `first_row` is the first of the warp's rows in the box.
  __device__ static __forceinline__ void stage(const float* sums, const Scales& encode, u32 box,
                                               int first_row, const ConsumerThread& self) {
    if (first_row >= kStripRows) return;  // a whole warp, whose rows do not exist
    const bool odd = self.lane % 2;
    const int row = self.lane / 4;  // row of eight
    const u32 line = box + static_cast<u32>((first_row + row) * kBlockColumns + row * 16);
    const u32 first = line + static_cast<u32>(self.lane % 2 * 8 + self.lane % 4 / 2 * 4);
    const u32 keep = odd ? 0x7632 : 0x5410, give = odd ? 0x5410 : 0x7632;
    const u32 join_upper = odd ? 0x1054 : 0x5410, join_lower = odd ? 0x3276 : 0x7632;
#pragma unroll
    for (int unit = 0; unit < kBlockColumns / 16; ++unit) {
      const float* at = sums + 8 * unit;
      const u32 upper = codes(at[0], at[1], at[4], at[5], encode.upper);
      const u32 lower = codes(at[2], at[3], at[6], at[7], encode.lower);
      const u32 kept = __byte_perm(upper, lower, keep);
      const u32 got = __shfl_xor_sync(kAllLanes, __byte_perm(upper, lower, give), 1);
      store_two_shared_4<8 * kBlockColumns>(first ^ static_cast<u32>(unit * 16),
                                            __byte_perm(kept, got, join_upper),
                                            __byte_perm(kept, got, join_lower));
    }
    if constexpr (kE5M2) {
      if (encode.infinite) mark_infinities(sums, line + static_cast<u32>(self.lane % 4 * 2));
    }
  }

  // E5M2: writes the codes of a thread's sums that were infinite over those of stage(). `first` is
  // the address of the thread's first code if unit 0 of the box were its place.
  __device__ static __forceinline__ void mark_infinities(const float* sums, u32 first) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBlockColumns / 2; ++i) {
      const u32 bits = __float_as_uint(sums[i]);
      if ((bits & 0x7fffffffu) != (kInfinity | kWasInfinite)) continue;
      const u32 unit = first ^ static_cast<u32>(i / 8 * 16);
      store_shared_1(unit + i % 4 / 2 * 8 * kBlockColumns + i / 4 % 2 * 8 + i % 2,
                     bits >> 31 ? 0xfcu : 0x7cu);
    }
  }
};

}  // namespace gemm::output
