// FP8 with scales of its own as the source: the values are code * scale.
//
//   value[r, c] = code[r, c] * scale of (r, c), rounded once to fp32
//
// A code becomes fp16 and then fp32, both exactly. NaNs and infinities stay what they are.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/codes.cuh"
#include "quantize/scale.cuh"
#endif

namespace quantize {

constexpr u32 kNan = 0x7fffffffu;  // the fp32 NaN of this hardware's arithmetic

// Decode scales as memory holds them: where an element's scale lies (docs/numerics.md, "Layouts"),
// and what it means.
template <int kGranularity, int kFormat>
struct DecodeScale {
  static constexpr bool kExponents = kFormat == kScaleE8M0 || kFormat == kScaleUe8m0x4;
  static constexpr int kBlock = kGranularity == k1x32 || kGranularity == k32x32 ? 32 : 128;

  // Returns the index of the scale that covers an element, in scales (ue8m0x4: in bytes).
  static __device__ __forceinline__ i64 index(i64 ld, i64 row, i64 col) {
    if constexpr (kGranularity == kPerTensor) return 0;
    if constexpr (kGranularity == kPerRow) return row;
    const i64 across = col / kBlock;
    if constexpr (kFormat == kScaleUe8m0x4) return ((across >> 2) * ld + row) * 4 + (across & 3);
    if constexpr (kGranularity == k1x128) return across * ld + row;
    if constexpr (kGranularity == k1x32) return row * ld + across;
    return row / kBlock * ld + across;
  }

  static constexpr bool kSquares = kGranularity == k128x128 || kGranularity == k32x32;
  // Returns the distance from one row's scale to the next row's, if every row has its own.
  static __device__ __forceinline__ i64 row_step(i64 ld) {
    if constexpr (kFormat == kScaleUe8m0x4) return 4;
    if constexpr (kGranularity == k1x32) return ld;
    return kGranularity == kPerTensor ? 0 : 1;
  }

  static __device__ __forceinline__ float load(const void* scales, i64 index) {
    const char* const p = static_cast<const char*>(scales);
    if constexpr (kExponents) {
      return of_exponent(memory::load_1(p + index));
    } else if constexpr (kFormat == kScaleBF16) {
      return cast::from_bf16(static_cast<u16>(memory::load_2(p + 2 * index)));
    } else {
      return __uint_as_float(memory::load_4(p + 4 * index));
    }
  }

  // Stores the bytes that load() would read as `scale`.
  static __device__ __forceinline__ void store(void* scales, i64 index, float scale) {
    char* const p = static_cast<char*>(scales);
    const u32 bits = __float_as_uint(scale);
    if constexpr (kExponents) {
      memory::store_1(p + index, bits >> 23);
    } else if constexpr (kFormat == kScaleBF16) {
      memory::store_2(p + 2 * index, bits >> 16);
    } else {
      memory::store_4(p + 4 * index, bits);
    }
  }
  static constexpr bool kUe8m0x4 = kFormat == kScaleUe8m0x4;  // for ScaleRuns

 private:
  // Returns 2^(biased - 127). 0 is 2^-127, which is subnormal in fp32; 255 of e8m0 is NaN.
  static __device__ __forceinline__ float of_exponent(u32 biased) {
    if (biased == 0) return __uint_as_float(0x00400000u);
    if (kFormat == kScaleE8M0 && biased == 255) return __uint_as_float(kNan);
    return __uint_as_float(biased << 23);
  }
};

template <int kFp8>
__device__ __forceinline__ u32 halves_of(u16 codes) {
  return kFp8 == kE4M3 ? cast::from_e4m3x2(codes) : cast::from_e5m2x2(codes);
}

// ---- codes as they are held ---------------------------------------------------------------------

// 8 codes and their scale, in 3 registers. Their values would fill 8, so they are made again at
// every use.
template <int kFp8>
struct CodedVector {
  u32 word[2];
  float scale;
};
struct alignas(16) ValueTops {
  u32 word[8];
};

// The fp32 values of such codes.
template <int kFp8>
struct Coded : Source<kFP32> {
  using Held = CodedVector<kFp8>;
  using Tops = ValueTops;
  static constexpr bool kMadeAnew = true;
  static constexpr int kElements = 8;

  static __device__ __forceinline__ float value_of(const Held& v, int i) {
    const u32 both = halves_of<kFp8>(static_cast<u16>(v.word[i / 4] >> i / 2 % 2 * 16));
    return __fmul_rn(cast::from_fp16(static_cast<u16>(i % 2 == 0 ? both : both >> 16)), v.scale);
  }
  static __device__ __forceinline__ u32 magnitude(const Held& v) {
    float top = fabsf(value_of(v, 0));
#pragma unroll
    for (int i = 1; i < kElements; ++i) top = arithmetic::max(top, fabsf(value_of(v, i)));
    return __float_as_uint(top);
  }
  static __device__ __forceinline__ u32 magnitude(const Tops& v) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) top = reduce::max(top, v.word[i]);
    return top;
  }
};

template <typename Src, int kFp8>
__device__ __forceinline__ float value_at(const CodedVector<kFp8>& v, int i) {
  return Src::value_of(v, i);
}
template <typename Src, int kFp8>
__device__ __forceinline__ ValueTops tops_of(const CodedVector<kFp8>& v) {
  ValueTops top;
#pragma unroll
  for (int i = 0; i < Src::kElements; ++i) top.word[i] = __float_as_uint(value_at<Src>(v, i));
  return top;
}
template <typename Src, int kFp8>
__device__ __forceinline__ void raise_tops(ValueTops& top, const CodedVector<kFp8>& v) {
#pragma unroll
  for (int i = 0; i < Src::kElements; ++i) {
    top.word[i] = Src::larger(top.word[i], __float_as_uint(value_at<Src>(v, i)));
  }
}
template <typename Src>
__device__ __forceinline__ const ValueTops& magnitudes_of(const ValueTops& v) {
  return v;  // larger() drops the signs of fp32
}
// Drops infinities and NaNs in a rolled loop over the vectors. It runs seldom, and its registers
// would not fit beside the fast path's.
template <typename Src, int kVectors, int kFp8>
__device__ __forceinline__ void drop_nonfinite(CodedVector<kFp8> (&v)[kVectors]) {
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    CodedVector<kFp8> one = picked(v, i);
    u32 kept[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < Src::kElements; ++e) {
      const u32 bits = __float_as_uint(value_at<Src>(one, e)) & 0x7fffffffu;
      if (bits < Src::kInfinity) kept[e / 4] |= 0xffu << e % 4 * 8;
    }
    one.word[0] &= kept[0];
    one.word[1] &= kept[1];
    if ((__float_as_uint(one.scale) & 0x7fffffffu) >= Src::kInfinity) one.scale = 0.0f;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (k == i) v[k] = one;
    }
  }
}

// ---- codes and scales in memory -----------------------------------------------------------------

// The codes of a patch and their scales. P::Src says how many elements a vector has: as many codes
// as become 16 bytes of the type they are widened to.
template <typename P, int kFp8, int kGranularity, int kFormat>
struct ScaledCodes {
  using Src = typename P::Src;
  using Scale = DecodeScale<kGranularity, kFormat>;
  static constexpr int kElements = Src::kElements;
  using Word = Codes<Src>;

  const char* x;
  const void* scales;
  i64 ldx, scale_ld;
  bool aligned;  // pointer and stride allow whole loads; the same in every thread

  __device__ __forceinline__ ScaledCodes(const Args& args, const P& patch)
      : x(static_cast<const char*>(args.x) + patch.row * args.ldx + patch.col),
        scales(args.x_scale),
        ldx(args.ldx),
        scale_ld(args.x_scale_ld),
        aligned((reinterpret_cast<u64>(args.x) | static_cast<u64>(args.ldx)) % kElements == 0) {}

  // Loads all vectors of the patch, row by row; elements outside the tensor become zeros. A whole
  // patch is loaded back to back. Otherwise whole vectors and scales come first.
  __device__ __forceinline__ void load(const P& patch, Word (&codes)[P::kVectors],
                                       float (&scale)[P::kVectors]) const {
    if (aligned && patch.whole()) return load_patch(patch, codes, scale);
    i64 offset = 0;
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const int row = i / P::kGroups, g = i % P::kGroups;
      codes[i] = {};
      if (row < patch.rows && whole(patch, g)) codes[i] = load_whole(group(g) + offset);
      if (g == P::kGroups - 1) offset += ldx * P::kRowStep;
    }
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const int row = i / P::kGroups, g = i % P::kGroups;
      scale[i] = 0.0f;
      if (kGranularity == kPerTensor && i > 0) {
        scale[i] = scale[0];
      } else if (kGranularity == kPerRow && g > 0) {
        scale[i] = scale[i - 1];
      } else if (row < patch.rows && patch.elements(g) > 0) {
        scale[i] = Scale::load(scales, scale_index(patch, row, g));
      }
    }
#pragma unroll
    for (int g = 0; g < P::kGroups; ++g) {
      if (patch.elements(g) == 0 || whole(patch, g)) continue;
      const char* p = group(g);
#pragma unroll 1
      for (int row = 0; row < patch.rows; ++row) {
        const Word gathered = gather_codes(p, patch.elements(g));
#pragma unroll
        for (int i = 0; i < P::kRows; ++i) {
          if (i == row) codes[i * P::kGroups + g] = gathered;
        }
        p += ldx * P::kRowStep;
      }
    }
  }

  // Sets the values of a vector, in order.
  static __device__ __forceinline__ void widen(const Word& codes, float scale,
                                               float (&value)[kElements]) {
#pragma unroll
    for (int i = 0; i < kElements / 2; ++i) {
      const u32 both = halves_of<kFp8>(static_cast<u16>(codes.word[i / 2] >> i % 2 * 16));
      value[2 * i] = __fmul_rn(cast::from_fp16(static_cast<u16>(both)), scale);
      value[2 * i + 1] = __fmul_rn(cast::from_fp16(static_cast<u16>(both >> 16)), scale);
    }
  }

  // Returns one value, read again.
  __device__ __forceinline__ float value(const P& patch, int row, int g, int element) const {
    const u32 code = memory::load_1(group(g) + row * ldx * P::kRowStep + element);
    const float scale = Scale::load(scales, scale_index(patch, row, g));
    return __fmul_rn(cast::from_fp16(static_cast<u16>(halves_of<kFp8>(static_cast<u16>(code)))),
                     scale);
  }

 private:
  __device__ __forceinline__ void load_patch(const P& patch, Word (&codes)[P::kVectors],
                                             float (&scale)[P::kVectors]) const {
    const char* p = x;
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      codes[i] = load_whole(p + i % P::kGroups * P::kGroupCols);
      if (i % P::kGroups == P::kGroups - 1) p += ldx * P::kRowStep;
    }
#pragma unroll
    for (int g = 0; g < P::kGroups; ++g) {
      i64 index = scale_index(patch, 0, g);
#pragma unroll
      for (int row = 0; row < P::kRows; ++row) {
        if constexpr (Scale::kSquares) index = scale_index(patch, row, g);
        const bool loaded =
            kGranularity == kPerTensor ? row + g > 0 : kGranularity == kPerRow && g > 0;
        const int i = row * P::kGroups + g;
        scale[i] = !loaded                      ? Scale::load(scales, index)
                   : kGranularity == kPerTensor ? scale[0]
                                                : scale[i - 1];
        if constexpr (!Scale::kSquares) index += Scale::row_step(scale_ld) * P::kRowStep;
      }
    }
  }
  __device__ __forceinline__ const char* group(int g) const { return x + g * P::kGroupCols; }
  __device__ __forceinline__ bool whole(const P& patch, int g) const {
    return aligned && patch.whole(g);
  }
  // No vector crosses a block, because both begin at multiples of a vector's length.
  __device__ __forceinline__ i64 scale_index(const P& patch, int row, int g) const {
    return Scale::index(scale_ld, patch.row + row * P::kRowStep, patch.col + g * P::kGroupCols);
  }
  static __device__ __forceinline__ Word load_whole(const char* p) {
    if constexpr (Word::kWords == 2) {
      const memory::Words2 both = memory::load_8(p);
      return {{both.word[0], both.word[1]}};
    } else {
      return {{memory::load_4(p)}};
    }
  }
  // Returns `count` codes from p, loaded one by one, then zeros; see gather() in patch.cuh.
  static __device__ __forceinline__ Word gather_codes(const char* p, int count) {
    Word codes = {};
#pragma unroll 1
    for (int i = 0; i < kElements; ++i) {
      const u32 code = i < count ? memory::load_1(p + i) : 0;
      if constexpr (Word::kWords == 2) {
        codes = {{codes.word[0] >> 8 | codes.word[1] << 24, codes.word[1] >> 8 | code << 24}};
      } else {
        codes = {{codes.word[0] >> 8 | code << 24}};
      }
    }
    return codes;
  }
};

// The values as an input of Source<kFP32>, which a quantiser reads instead of a tensor.
template <typename P, int kFp8, int kGranularity, int kFormat>
struct ScaledInput {
  using Src = typename P::Src;
  using From = ScaledCodes<P, kFp8, kGranularity, kFormat>;
  static constexpr bool kComputed = true;
  static constexpr bool kLooksUp = false;
  From from;
  P patch;

  __device__ __forceinline__ ScaledInput(const Args& args, const P& of)
      : from(args, of), patch(of) {
    static_assert(Src::kElementBytes == 4, "values are fp32");
  }

  __device__ __forceinline__ void load(const P& of, Vector (&v)[P::kVectors]) const {
    typename From::Word codes[P::kVectors];
    float scale[P::kVectors];
    from.load(of, codes, scale);
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      float value[4];
      From::widen(codes[i], scale[i], value);
      // Rows beyond the last become padding, which is +0 for either sign of a single scale.
      // Scales of their own are +0 already.
      const bool exists = kGranularity != kPerTensor || i / P::kGroups < of.rows;
#pragma unroll
      for (int w = 0; w < 4; ++w) v[i].word[w] = exists ? __float_as_uint(value[w]) : 0;
    }
  }

  // Loads codes and scales without widening them, for Coded.
  __device__ __forceinline__ void load(const P& of, CodedVector<kFp8> (&v)[P::kVectors]) const {
    typename From::Word codes[P::kVectors];
    float scale[P::kVectors];
    from.load(of, codes, scale);
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const bool exists = kGranularity != kPerTensor || i / P::kGroups < of.rows;
      v[i] = {{codes[i].word[0], codes[i].word[1]}, exists ? scale[i] : 0.0f};
    }
  }

  // Returns the bits of one value, read again for the slow path.
  __device__ __forceinline__ u32 raw(int row, int g, int element) const {
    return __float_as_uint(from.value(patch, row, g, element));
  }
};

}  // namespace quantize
