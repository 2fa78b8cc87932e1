// The cast from values to FP8 codes, and the row-wise output.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/patch.cuh"
#endif

namespace quantize {

// ---- cast ---------------------------------------------------------------------------------------

// The codes of one Vector in order; the first element is the lowest byte.
template <typename Src>
struct Codes {
  static constexpr int kWords = Src::kElements / 4;
  u32 word[kWords];
};

template <int kFp8>
__device__ __forceinline__ u32 cast_pair(float upper, float lower) {
  return kFp8 == kE4M3 ? cast::e4m3x2(upper, lower) : cast::e5m2x2(upper, lower);
}

template <typename Src, int kFp8>
__device__ __forceinline__ Codes<Src> cast_vector(const typename Src::Held& v, float encode_scale) {
  Codes<Src> codes;
#pragma unroll
  for (int w = 0; w < Codes<Src>::kWords; ++w) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(value_at<Src>(v, 4 * w + i), encode_scale);
    codes.word[w] = cast_pair<kFp8>(x[1], x[0]) | cast_pair<kFp8>(x[3], x[2]) << 16;
  }
  return codes;
}

// Returns the code of an element that is infinite or NaN. The hardware cast saturates infinity;
// here it becomes NaN (E4M3) or the infinity of its sign (E5M2). The NaN code does not depend on
// the cast.
template <typename Src, int kFp8>
__device__ __forceinline__ u32 nonfinite_code(u32 raw) {
  const u32 magnitude = raw & ~sign_bit<Src>();
  if (kFp8 == kE4M3 || magnitude > Src::kInfinity) return 0x7fu;
  return raw == magnitude ? 0x7cu : 0xfcu;
}

// ---- output -------------------------------------------------------------------------------------

template <typename Src>
__device__ __forceinline__ void store_whole(char* p, const Codes<Src>& codes) {
  if constexpr (Codes<Src>::kWords == 2) {
    memory::store_8(p, codes.word[0], codes.word[1]);
  } else {
    memory::store_4(p, codes.word[0]);
  }
}

// Writes `count` codes, all of them in one access if `whole`. Nothing beyond them is touched.
template <typename Src>
__device__ __forceinline__ void store(char* p, Codes<Src> codes, int count, bool whole) {
  if (whole) return store_whole<Src>(p, codes);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    memory::store_1(p + i, codes.word[0]);
    if constexpr (Codes<Src>::kWords == 2) {
      codes.word[0] = codes.word[0] >> 8 | codes.word[1] << 24;
      codes.word[1] >>= 8;
    } else {
      codes.word[0] >>= 8;
    }
  }
}

// Calls put(row, group, element, code) for each infinity and NaN of a patch, and returns how many
// there are. This slow path reads x again in rolled loops, so that the fast path carries none of
// its code or registers.
template <int kFp8, typename P, typename Input, typename Put>
__device__ __forceinline__ u32 recode_nonfinite(const P& patch, const Input& input, Put put) {
  using Src = typename P::Src;
  u32 found = 0;
#pragma unroll 1
  for (int g = 0; g < P::kGroups; ++g) {
#pragma unroll 1
    for (int row = 0; row < patch.rows; ++row) {
#pragma unroll 1
      for (int i = 0; i < patch.elements(g); ++i) {
        const u32 raw = input.raw(row, g, i);
        if ((raw & ~sign_bit<Src>()) < Src::kInfinity) continue;
        ++found;
        put(row, g, i, nonfinite_code<Src, kFp8>(raw));
      }
    }
  }
  return found;
}

// The row-wise codes of one thread's patch.
template <typename P>
struct RowOutput {
  using Src = typename P::Src;
  char* q;
  i64 step;      // bytes from one row of the patch to the next
  bool aligned;  // pointer and stride allow whole stores; the same in every thread

  __device__ __forceinline__ RowOutput(const Args& args, const P& patch)
      : q(static_cast<char*>(args.q) + patch.row * args.ldq + patch.col),
        step(args.ldq * P::kRowStep) {
    const u64 bits = reinterpret_cast<u64>(args.q) | static_cast<u64>(args.ldq);
    aligned = bits % (P::kSideBySide ? 2 * Src::kElements : Src::kElements) == 0;
  }
  // Finds the address here and not where it is used.
  __device__ __forceinline__ void settle() {
    q = const_cast<char*>(::hide_from_optimizer(static_cast<const char*>(q)));
  }

  // Casts and writes the patch. encode_scale_of(i) returns vector i's encode scale. Every thread
  // calls it for every i, because it may be a shuffle. mark_nonfinite writes the codes of
  // infinities and NaNs.
  template <int kFp8, typename EncodeScaleOf>
  __device__ __forceinline__ void write(const P& patch, const typename Src::Held (&v)[P::kVectors],
                                        EncodeScaleOf encode_scale_of) const {
    float encode_scale[P::kVectors];
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) encode_scale[i] = encode_scale_of(i);
    if (!aligned || !patch.whole()) return write_edge<kFp8>(patch, v, encode_scale);
    char* p = q;
    Codes<Src> before = {};
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const int g = i % P::kGroups;
      const Codes<Src> codes = cast_vector<Src, kFp8>(v[i], encode_scale[i]);
      if constexpr (!P::kSideBySide) {
        store_whole<Src>(p + patch.offset(g), codes);
      } else if (i % 2 == 1) {
        memory::store_8(p + patch.offset(g - 1), before.word[0], codes.word[0]);
      }
      before = codes;
      if (g == P::kGroups - 1) p += step;
    }
  }

  // Writes the codes of the patch's infinities and NaNs over those of write(), and returns their
  // count.
  template <int kFp8, typename Input>
  __device__ __forceinline__ u32 mark_nonfinite(const P& patch, const Input& input) const {
    return recode_nonfinite<kFp8>(patch, input, [&](int row, int g, int i, u32 code) {
      memory::store_1(q + row * step + patch.offset(g) + i, code);
    });
  }

 private:
  // Writes one vector after the other, in a loop that picks them by selects: at the tensor's edge,
  // or if the tensor is misaligned.
  template <int kFp8>
  __device__ __forceinline__ void write_edge(const P& patch,
                                             const typename Src::Held (&v)[P::kVectors],
                                             const float (&encode_scale)[P::kVectors]) const {
    char* p = q;
#pragma unroll 1
    for (int i = 0; i < P::kVectors; ++i) {
      const Codes<Src> codes = cast_vector<Src, kFp8>(picked(v, i), picked(encode_scale, i));
      const int g = i % P::kGroups;
      if (i / P::kGroups < patch.rows) {
        store<Src>(p + patch.offset(g), codes, patch.elements(g), aligned && patch.whole(g));
      }
      if (g == P::kGroups - 1) p += step;
    }
  }
};

}  // namespace quantize
