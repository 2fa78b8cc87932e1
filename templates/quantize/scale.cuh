// From amax to the scale in memory: the encode scale of a block's largest magnitude, and where and
// how the decode scale is stored.
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

// The numerics of a kernel. kOcpFloor: e8m0 scales are rounded down, as the OCP text says, instead
// of to the smallest that saturates nothing.
template <typename Src, int kFp8, int kFormat, bool kOcpFloor>
struct Rule {
  static constexpr float kMax = kFp8 == kE4M3 ? kMaxE4M3 : kMaxE5M2;
  static constexpr int kMaxExponent = kFp8 == kE4M3 ? 8 : 15;
  static constexpr bool kPowerOfTwo = kFormat == kScalePow2 || kFormat == kScaleUe8m0x4;
  static constexpr bool kUe8m0x4 = kFormat == kScaleUe8m0x4;
  static constexpr int kTarget = kFp8;
  // The bytes from a scale to the next of its run. ue8m0x4 scales lie between those of three other
  // runs.
  static constexpr int kStepBytes = kUe8m0x4                ? 4
                                    : kFormat == kScaleE8M0 ? 1
                                    : kFormat == kScaleBF16 ? 2
                                                            : 4;

  static __device__ __forceinline__ float encode_scale(u32 magnitude, float amax_epsilon) {
    return encode_scale_of_amax(Src::value(magnitude), amax_epsilon);
  }

  static __device__ __forceinline__ float encode_scale_of_amax(float amax, float amax_epsilon) {
    if (amax < amax_epsilon) amax = amax_epsilon;
    if (amax == 0.0f) return 1.0f;
    if constexpr (kFormat == kScaleE8M0) {
      // Adding 2^21 - 1 carries into the exponent exactly if the significand exceeds 1.75.
      const u32 rounded = __float_as_uint(amax) + (kOcpFloor ? 0 : 0x1fffffu);
      const int exponent = static_cast<int>(rounded >> 23) - kMaxExponent;
      return __uint_as_float(static_cast<u32>(254 - (exponent < 0 ? 0 : exponent)) << 23);
    }
    u32 bits = __float_as_uint(__fdiv_rn(kMax, amax));
    if (bits == 0x7f800000u) bits = Src::kMaxFiniteBits;
    if constexpr (kPowerOfTwo) bits &= 0xff800000u;
    return __uint_as_float(bits);
  }

  // Returns the biased exponent of 1 / encode_scale, which must be a power of two.
  static __device__ __forceinline__ u32 decode_exponent(float encode_scale) {
    return 254u - (__float_as_uint(encode_scale) >> 23);
  }

  static __device__ __forceinline__ void store(void* scales, i64 index, float encode_scale) {
    if constexpr (kFormat == kScaleE8M0 || kUe8m0x4) {
      memory::store_1(static_cast<char*>(scales) + index, decode_exponent(encode_scale));
    } else if constexpr (kFormat == kScaleBF16) {
      const u32 bits = __float_as_uint(__frcp_rn(encode_scale));
      memory::store_2(static_cast<char*>(scales) + 2 * index,
                      (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    } else {
      memory::store_4(static_cast<char*>(scales) + 4 * index, word(encode_scale));
    }
  }
  // Returns the bits of an fp32 scale as it is stored.
  static __device__ __forceinline__ u32 word(float encode_scale) {
    return __float_as_uint(__frcp_rn(encode_scale));
  }
};

// An array of scales: `outer` runs of `inner` contiguous scales, `ld` from run to run. A run is
// padded with ones up to a multiple of 4, or up to the stride if that leaves less room. ue8m0x4
// runs are also padded up to whole words of four runs. If swizzled, tiles of 128 runs x 4 scales
// follow one another along the runs, 512 bytes each, and are padded whole. The thread that stores
// the last scale of a run stores its padding. The threads of the last run also store the padding of
// absent runs.
template <typename Rule, bool kSwizzled = false>
struct ScaleRuns {
  static constexpr int kRunsTogether = kSwizzled ? 128 : Rule::kUe8m0x4 ? 4 : 1;
  void* scales;
  i64 outer, inner, ld;

  __device__ __forceinline__ i64 index(i64 run, i64 i) const {
    if constexpr (Rule::kUe8m0x4) return ((run >> 2) * ld + i) * 4 + (run & 3);
    if constexpr (kSwizzled) {
      // cuBLAS, "1D Block Scaling Factors Layout".
      return ((run >> 7) * (ld >> 2) + (i >> 2)) * 512 + (run & 31) * 16 + (run >> 5 & 3) * 4 +
             (i & 3);
    }
    return run * ld + i;
  }
  __device__ __forceinline__ void store(i64 run, i64 i, float encode_scale) const {
    store_in_run(run, i, encode_scale);
    if constexpr (kRunsTogether > 1) {
      if (run + 1 == outer) {
#pragma unroll 1
        for (i64 pad = outer; pad % kRunsTogether != 0; ++pad) store_in_run(pad, i, 1.0f);
      }
    }
  }

  // Stores the i-th scales of `count` runs from `run` on, at most kCount.
  template <int kCount>
  __device__ __forceinline__ void store_down(i64 run, i64 i, int count,
                                             const float (&encode_scale)[kCount]) const {
    if (kRunsTogether == 1 && count == kCount && i + 1 < inner) {
      char* p = place(run, i);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        Rule::store(p, 0, encode_scale[j]);
        p += ld * Rule::kStepBytes;
      }
      return;
    }
#pragma unroll 1
    for (int j = 0; j < count; ++j) store(run + j, i, picked(encode_scale, j));
  }
  // Stores scales i, i + kDistance, ... of a run, at most kCount, and none beyond the run.
  template <int kDistance, int kCount>
  __device__ __forceinline__ void store_apart(i64 run, i64 i,
                                              const float (&encode_scale)[kCount]) const {
    const i64 last = inner - 1 - i;  // from the first to the run's last
    if constexpr (kRunsTogether == 1) {
      char* const p = place(run, i);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (j * kDistance < last)
          Rule::store(p + j * kDistance * Rule::kStepBytes, 0, encode_scale[j]);
      }
      const i64 j = last / kDistance;
      if (last < 0 || last % kDistance != 0 || j >= kCount) return;
      store(run, i + last, picked(encode_scale, static_cast<int>(j)));
    } else {
#pragma unroll 1
      for (int j = 0; j < kCount && j * kDistance <= last; ++j) {
        store(run, i + j * kDistance, picked(encode_scale, j));
      }
    }
  }
  // Stores `count` scales of a run from the i-th on, at most kCount; i is a multiple of kCount.
  // Four bytes are stored as one word, because 1x32 scales of a transposed copy lie far apart from
  // column to column.
  template <int kCount>
  __device__ __forceinline__ void store_along(i64 run, i64 i, int count,
                                              const float (&encode_scale)[kCount]) const {
    if constexpr (Rule::kStepBytes == 1 && kCount == 4) {
      char* const p = place(run, i);
      const bool last = kRunsTogether > 1 && run + 1 == outer;
      if (i + kCount < inner && !last && reinterpret_cast<u64>(p) % 4 == 0) {
        u32 word = 0;
#pragma unroll
        for (int j = 0; j < kCount; ++j) word |= Rule::decode_exponent(encode_scale[j]) << 8 * j;
        memory::store_4(p, word);
        return;
      }
    }
#pragma unroll 1
    for (int j = 0; j < count; ++j) store(run, i + j, picked(encode_scale, j));
  }

 private:
  __device__ __forceinline__ char* place(i64 run, i64 i) const {
    return static_cast<char*>(scales) + index(run, i) * Rule::kStepBytes;
  }
  __device__ __forceinline__ void store_in_run(i64 run, i64 i, float encode_scale) const {
    Rule::store(scales, index(run, i), encode_scale);
    if (i + 1 != inner) return;
    const i64 padded = (inner + 3) & ~i64{3};
#pragma unroll 1
    for (i64 pad = inner; pad < (padded < ld ? padded : ld); ++pad) {
      Rule::store(scales, index(run, pad), 1.0f);
    }
  }
};

// Returns the largest of a tensor's partial maxima, which tensor_amax.cu left: a multiple of 4
// words, 16-byte aligned. All 32 lanes call it.
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

// Raises a maximum in memory to `bits`. It only rises, so a stale read can cause a needless atomic
// but never omit one.
__device__ __forceinline__ void raise(u32* maximum, u32 bits) {
  if (bits > *static_cast<volatile const u32*>(maximum)) atomicMax(maximum, bits);
}

// Leaves the caller's records of a tensor that is scaled by its own maximum, `magnitude`.
template <typename Src>
__device__ __forceinline__ void record_scale(const Args& args, u32 magnitude, float encode_scale) {
  if (args.amax != nullptr) raise(args.amax, __float_as_uint(Src::value(magnitude)));
  if (args.encode_scale != nullptr)
    memory::store_4(args.encode_scale, __float_as_uint(encode_scale));
}

// Returns the maximum that tensor_amax.cu found. All 32 lanes call it.
__device__ __forceinline__ u32 known_magnitude(const Args& args) { return tensor_magnitude(args); }

// Adds the infinities and NaNs that a thread found to the caller's count.
__device__ __forceinline__ void count_nonfinite(const Args& args, u32 found) {
  if (args.nonfinite != nullptr && found != 0) atomicAdd(args.nonfinite, u64{found});
}

// Delayed scaling: what is loaded before the source, so that no step waits for it later.
struct Given {
  float encode_scale;
  u32 amax;  // the record as it was then; all bits are set if none is kept
};
__device__ __forceinline__ Given given_scale(const Args& args) {
  Given given = {__uint_as_float(memory::load_4(args.encode_scale)), 0xffffffffu};
  if (args.amax != nullptr) given.amax = memory::glance_4(args.amax);
  return given;
}
// Raises the record to the warp's maximum. All 32 lanes call it.
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
