// amax -> scale -> memory: the encode scale of a block's largest magnitude, and where and how its
// decode scale is stored.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/elements.cuh"
#endif

namespace quantize {

// Scale formats, by the values of octile_scale_format.
constexpr int kScaleF32 = 1;
constexpr int kScalePow2 = 2;
constexpr int kScaleUe8m0x4 = 3;
constexpr int kScaleE8M0 = 4;
constexpr int kScaleBF16 = 5;

// The numerics of a kernel. kOcpFloor: e8m0 scales as the OCP text rounds them, down, instead of
// the smallest that saturates nothing.
template <typename Src, int kFp8, int kFormat, bool kOcpFloor>
struct Rule {
  static constexpr float kMax = kFp8 == kE4M3 ? 448.0f : 57344.0f;  // 1.75 * 2^kMaxExponent
  static constexpr int kMaxExponent = kFp8 == kE4M3 ? 8 : 15;
  static constexpr bool kPowerOfTwo = kFormat == kScalePow2 || kFormat == kScaleUe8m0x4;
  static constexpr bool kPacked = kFormat == kScaleUe8m0x4;
  static constexpr int kTarget = kFp8;
  // From a scale to the next of its run; packed ones lie between those of three other runs.
  static constexpr int kStepBytes = kPacked                 ? 4
                                    : kFormat == kScaleE8M0 ? 1
                                    : kFormat == kScaleBF16 ? 2
                                                            : 4;

  static __device__ __forceinline__ float encode(u32 magnitude, float amax_epsilon) {
    return encode_amax(Src::value(magnitude), amax_epsilon);
  }

  static __device__ __forceinline__ float encode_amax(float amax, float amax_epsilon) {
    if (amax < amax_epsilon) amax = amax_epsilon;
    if (amax == 0.0f) return 1.0f;
    if constexpr (kFormat == kScaleE8M0) {
      // Adding all but the lowest of a quarter carries where the significand is above 1.75.
      const u32 rounded = __float_as_uint(amax) + (kOcpFloor ? 0 : 0x1fffffu);
      const int exponent = static_cast<int>(rounded >> 23) - kMaxExponent;
      return __uint_as_float(static_cast<u32>(254 - (exponent < 0 ? 0 : exponent)) << 23);
    }
    u32 bits = __float_as_uint(__fdiv_rn(kMax, amax));
    if (bits == 0x7f800000u) bits = Src::kMaxFiniteBits;
    if constexpr (kPowerOfTwo) bits &= 0xff800000u;
    return __uint_as_float(bits);
  }

  // The biased exponent of 1 / encode, encode a power of two.
  static __device__ __forceinline__ u32 decode_exponent(float encode) {
    return 254u - (__float_as_uint(encode) >> 23);
  }

  static __device__ __forceinline__ void store(void* scales, i64 index, float encode) {
    if constexpr (kFormat == kScaleE8M0 || kPacked) {
      memory::store_1(static_cast<char*>(scales) + index, decode_exponent(encode));
    } else if constexpr (kFormat == kScaleBF16) {
      const u32 bits = __float_as_uint(__frcp_rn(encode));
      memory::store_2(static_cast<char*>(scales) + 2 * index,
                      (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    } else {
      memory::store_4(static_cast<char*>(scales) + 4 * index, word(encode));
    }
  }
  // An fp32 scale as it is stored.
  static __device__ __forceinline__ u32 word(float encode) {
    return __float_as_uint(__frcp_rn(encode));
  }
};

// An array of scales: `outer` runs of `inner` contiguous scales, `ld` from run to run. A run is
// padded with ones up to a multiple of 4, or to the stride where it leaves less room; packed
// exponents also up to whole words of four runs. Swizzled, tiles of 128 runs x 4 scales lie one
// after the other along the runs, 512 bytes each, and are padded whole. Whoever stores the last
// scale of a run stores its padding; of the last run, that of the runs it lacks.
template <typename Rule, bool kSwizzled = false>
struct ScaleRuns {
  static constexpr int kRunsTogether = kSwizzled ? 128 : Rule::kPacked ? 4 : 1;
  void* scales;
  i64 outer, inner, ld;

  __device__ __forceinline__ i64 index(i64 run, i64 i) const {
    if constexpr (Rule::kPacked) return ((run >> 2) * ld + i) * 4 + (run & 3);
    if constexpr (kSwizzled) {
      // cuBLAS, "1D Block Scaling Factors Layout".
      return ((run >> 7) * (ld >> 2) + (i >> 2)) * 512 + (run & 31) * 16 + (run >> 5 & 3) * 4 +
             (i & 3);
    }
    return run * ld + i;
  }
  __device__ __forceinline__ void store(i64 run, i64 i, float encode) const {
    store_in_run(run, i, encode);
    if constexpr (kRunsTogether > 1) {
      if (run + 1 == outer) {
#pragma unroll 1
        for (i64 pad = outer; pad % kRunsTogether != 0; ++pad) store_in_run(pad, i, 1.0f);
      }
    }
  }

  // The i-th scales of `count` runs from `run` on, at most kCount.
  template <int kCount>
  __device__ __forceinline__ void store_down(i64 run, i64 i, int count,
                                             const float (&encode)[kCount]) const {
    if (kRunsTogether == 1 && count == kCount && i + 1 < inner) {
      char* p = place(run, i);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        Rule::store(p, 0, encode[j]);
        p += ld * Rule::kStepBytes;
      }
      return;
    }
#pragma unroll 1
    for (int j = 0; j < count; ++j) store(run + j, i, picked(encode, j));
  }
  // Scales i, i + kDistance, ... of a run, at most kCount; what lies beyond it is left out.
  template <int kDistance, int kCount>
  __device__ __forceinline__ void store_apart(i64 run, i64 i, const float (&encode)[kCount]) const {
    const i64 last = inner - 1 - i;  // from the first to the run's last
    if constexpr (kRunsTogether == 1) {
      char* const p = place(run, i);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (j * kDistance < last) Rule::store(p + j * kDistance * Rule::kStepBytes, 0, encode[j]);
      }
      const i64 j = last / kDistance;
      if (last < 0 || last % kDistance != 0 || j >= kCount) return;
      store(run, i + last, picked(encode, static_cast<int>(j)));
    } else {
#pragma unroll 1
      for (int j = 0; j < kCount && j * kDistance <= last; ++j) {
        store(run, i + j * kDistance, picked(encode, j));
      }
    }
  }
  // `count` scales of a run from the i-th on, at most kCount; i a multiple of kCount. Bytes that
  // make a word in one access: 1x32 scales of a transposed copy lie far apart from column to
  // column.
  template <int kCount>
  __device__ __forceinline__ void store_along(i64 run, i64 i, int count,
                                              const float (&encode)[kCount]) const {
    if constexpr (Rule::kStepBytes == 1 && kCount == 4) {
      char* const p = place(run, i);
      const bool last = kRunsTogether > 1 && run + 1 == outer;
      if (i + kCount < inner && !last && reinterpret_cast<u64>(p) % 4 == 0) {
        u32 word = 0;
#pragma unroll
        for (int j = 0; j < kCount; ++j) word |= Rule::decode_exponent(encode[j]) << 8 * j;
        memory::store_4(p, word);
        return;
      }
    }
#pragma unroll 1
    for (int j = 0; j < count; ++j) store(run, i + j, picked(encode, j));
  }

 private:
  __device__ __forceinline__ char* place(i64 run, i64 i) const {
    return static_cast<char*>(scales) + index(run, i) * Rule::kStepBytes;
  }
  __device__ __forceinline__ void store_in_run(i64 run, i64 i, float encode) const {
    Rule::store(scales, index(run, i), encode);
    if (i + 1 != inner) return;
    const i64 padded = (inner + 3) & ~i64{3};
#pragma unroll 1
    for (i64 pad = inner; pad < (padded < ld ? padded : ld); ++pad) {
      Rule::store(scales, index(run, pad), 1.0f);
    }
  }
};

// The largest of a tensor's partial maxima, as tensor_amax.cu left them: a multiple of 4 words, 16-
// byte aligned. All 32 lanes.
__device__ __forceinline__ u32 tensor_magnitude(const Args& args) {
  u32 top = 0;
#pragma unroll 4
  for (i64 i = threadIdx.x % 32 * 4; i < args.partials; i += 128) {
    const Vector v = memory::reread_16(args.maxima + i);
    top = reduce::max(
        top, reduce::max(reduce::max(v.word[0], v.word[1]), reduce::max(v.word[2], v.word[3])));
  }
  return __reduce_max_sync(0xffffffffu, top);
}

// A maximum kept in memory. It only rises, so that a stale look at it can cost an atomic and never
// lose one.
__device__ __forceinline__ void raise(u32* maximum, u32 bits) {
  if (bits > *static_cast<volatile const u32*>(maximum)) atomicMax(maximum, bits);
}

// Raises the caller's record of a tensor's amax to `magnitude`.
template <typename Src>
__device__ __forceinline__ void raise_amax(const Args& args, u32 magnitude) {
  if (args.amax != nullptr) raise(args.amax, __float_as_uint(Src::value(magnitude)));
}

// What the known maxima of tensor_amax.cu say of the tile's tensor. All 32 lanes.
__device__ __forceinline__ u32 known_magnitude(const Args& args) { return tensor_magnitude(args); }

// Adds what a thread met of infinities and NaNs to the caller's count.
__device__ __forceinline__ void count_nonfinite(const Args& args, u32 found) {
  if (args.nonfinite != nullptr && found != 0) atomicAdd(args.nonfinite, u64{found});
}

// Delayed scaling: what is asked for before the source is, so that nobody waits for it afterwards.
struct Given {
  float encode_scale;
  u32 amax;  // the record as it was then; the largest of all bits where none is kept
};
__device__ __forceinline__ Given given_scale(const Args& args) {
  Given given = {__uint_as_float(memory::load_4(args.encode_scale)), 0xffffffffu};
  if (args.amax != nullptr) given.amax = memory::glance_4(args.amax);
  return given;
}
// The warp's maximum goes into the record. All 32 lanes.
template <typename Src, int kVectors>
__device__ __forceinline__ void record_amax(const Args& args, const Given& given,
                                            const u32 (&magnitudes)[kVectors]) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  top = __float_as_uint(Src::value(__reduce_max_sync(0xffffffffu, top)));
  if (threadIdx.x % 32 == 0 && top > given.amax) atomicMax(args.amax, top);
}

}  // namespace quantize
