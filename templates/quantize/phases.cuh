// The phases every quantise kernel is composed of: source -> amax -> scale -> cast -> output. A
// kernel chooses who holds which vectors and how their maxima meet; the arithmetic is here, once,
// and is bit for bit that of docs/numerics.md ("Quantising"):
//   amax   = max over the finite x of a block of |x|, raised to epsilon; 0 -> encode = 1
//   encode = fp8_max / amax, correctly rounded; infinite -> the input type's largest finite number;
//            pow2: its exponent alone
//   q      = fp8(fp32(x * encode)); NaN -> NaN; infinity -> NaN (E4M3) or infinity (E5M2)
//   scale  = 1 / encode, correctly rounded, possibly subnormal
// Every rounding is an explicit _rn intrinsic: no contraction, no flush to zero.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/cast.cuh"
#include "lib/memory.cuh"
#include "lib/reduce.cuh"
#include "lib/types.cuh"
#endif

namespace quantize {

// Element types, by the values of octile_dtype.
constexpr int kE4M3 = 1;
constexpr int kE5M2 = 2;
constexpr int kBF16 = 3;
constexpr int kFP16 = 4;
constexpr int kFP32 = 5;

// The only kernel parameter: QuantizeKernelArgs on the host.
struct Args {
  const void* x;
  void* q;
  float* scale;
  i64 rows, cols;
  i64 ldx, ldq, scale_ld;  // elements
};
static_assert(sizeof(Args) == 64, "QuantizeKernelArgs has 64 bytes");

using Vector = memory::Words4;  // 16 bytes of x, as one thread loads them

// ---- source: what the bits of x mean ------------------------------------------------------------
// "Magnitude" is the bits without the sign; magnitudes order as unsigned integers, and those at or
// above kInfinity are infinity and NaN.

// Two 16-bit elements a word, the lower half first.
struct Source16 {
  static constexpr int kElementBytes = 2;
  static constexpr int kElements = 8;  // per Vector

  static __device__ __forceinline__ u32 raw(const Vector& v, int i) {
    return i % 2 == 0 ? v.word[i / 2] & 0xffffu : v.word[i / 2] >> 16;
  }
  static __device__ __forceinline__ u32 magnitude(const Vector& v) {
    u32 both = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) both = reduce::max_u16x2(both, v.word[w] & 0x7fff7fffu);
    return reduce::max(both & 0xffffu, both >> 16);
  }
  static __device__ __forceinline__ u32 load(const void* p) { return memory::load_2(p); }
};

template <int kType>
struct Source;

template <>
struct Source<kBF16> : Source16 {
  static constexpr u32 kInfinity = 0x7f80u;
  static constexpr u32 kMaxFiniteBits = 0x7f7f0000u;  // as fp32
  static __device__ __forceinline__ float value(u32 raw) {
    return cast::from_bf16(static_cast<u16>(raw));
  }
};

template <>
struct Source<kFP16> : Source16 {
  static constexpr u32 kInfinity = 0x7c00u;
  static constexpr u32 kMaxFiniteBits = 0x477fe000u;  // 65504
  static __device__ __forceinline__ float value(u32 raw) {
    return cast::from_fp16(static_cast<u16>(raw));
  }
};

template <>
struct Source<kFP32> {
  static constexpr int kElementBytes = 4;
  static constexpr int kElements = 4;
  static constexpr u32 kInfinity = 0x7f800000u;
  static constexpr u32 kMaxFiniteBits = 0x7f7fffffu;

  static __device__ __forceinline__ u32 raw(const Vector& v, int i) { return v.word[i]; }
  static __device__ __forceinline__ float value(u32 raw) { return __uint_as_float(raw); }
  static __device__ __forceinline__ u32 magnitude(const Vector& v) {
    u32 top = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) top = reduce::max(top, v.word[w] & 0x7fffffffu);
    return top;
  }
  static __device__ __forceinline__ u32 load(const void* p) { return memory::load_4(p); }
};

template <typename Src>
__device__ __forceinline__ constexpr u32 sign_bit() {
  return 1u << (8 * Src::kElementBytes - 1);
}

// The patch of the tensor one thread holds: kVectors vectors of 16 bytes, kGroups along a row
// (kGroupCols columns apart), the rest kRowStep rows apart. Built from its first element's
// position; from there on there are only pointers, steps and small counts, so that the fast path
// spends its 64-bit arithmetic once.
template <typename Src, int kVectors, int kGroups, int kGroupCols, int kRowStep>
struct Patch {
  static constexpr int kRows = kVectors / kGroups;
  static_assert(kRows * kGroups == kVectors, "a patch is whole rows of vectors");

  const char* x;
  char* q;
  i64 x_step, q_step;     // bytes from one row of the patch to the next
  int rows;               // rows of the patch that exist, 0..kRows
  int elements[kGroups];  // elements of each group's vectors that exist, 0..Src::kElements
  bool aligned;           // pointers and strides allow whole vectors; the same in every thread

  __device__ __forceinline__ Patch(const Args& args, i64 row, i64 col)
      : x(static_cast<const char*>(args.x) + (row * args.ldx + col) * Src::kElementBytes),
        q(static_cast<char*>(args.q) + row * args.ldq + col),
        x_step(args.ldx * (Src::kElementBytes * kRowStep)),
        q_step(args.ldq * kRowStep),
        rows((clamp(args.rows - row, kRows * kRowStep) + kRowStep - 1) / kRowStep) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      elements[g] = clamp(args.cols - col - g * kGroupCols, Src::kElements);
    }
    const u64 x_bits =
        reinterpret_cast<u64>(args.x) | static_cast<u64>(args.ldx) * Src::kElementBytes;
    const u64 q_bits = reinterpret_cast<u64>(args.q) | static_cast<u64>(args.ldq);
    aligned = x_bits % sizeof(Vector) == 0 && q_bits % Src::kElements == 0;
  }
  __device__ __forceinline__ bool whole(int group) const {
    return aligned && elements[group] == Src::kElements;
  }
  __device__ __forceinline__ const char* x_group(int group) const {
    return x + group * kGroupCols * Src::kElementBytes;
  }

  static __device__ __forceinline__ int clamp(i64 count, int limit) {
    return count < 0 ? 0 : count < limit ? static_cast<int>(count) : limit;
  }
};

// `count` elements from p one by one, then zeros. The loop is kept rolled (the elements enter a
// 128-bit shift register from the top): it serves misaligned tensors and the last columns, and must
// not cost the fast path registers.
template <typename Src>
__device__ __forceinline__ Vector gather(const char* p, int count) {
  constexpr u32 kBits = 8 * Src::kElementBytes % 32;  // 0: a whole word moves
  Vector v = {{0, 0, 0, 0}};
#pragma unroll 1
  for (int i = 0; i < Src::kElements; ++i) {
    const u32 raw = i < count ? Src::load(p + i * Src::kElementBytes) : 0;
    if constexpr (kBits == 0) {
      v = {{v.word[1], v.word[2], v.word[3], raw}};
    } else {
      v = {{v.word[0] >> kBits | v.word[1] << (32 - kBits),
            v.word[1] >> kBits | v.word[2] << (32 - kBits),
            v.word[2] >> kBits | v.word[3] << (32 - kBits),
            v.word[3] >> kBits | raw << (32 - kBits)}};
    }
  }
  return v;
}

// All vectors of the patch, row by row; zeros where the tensor has no element. First every vector
// that one access may take, back to back; then, in the few threads that have any, the others.
template <typename Src, int kVectors, int kGroups, int kGroupCols, int kRowStep>
__device__ __forceinline__ void load(
    const Patch<Src, kVectors, kGroups, kGroupCols, kRowStep>& patch, Vector (&v)[kVectors]) {
  i64 offset = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int row = i / kGroups, group = i % kGroups;
    v[i] = {{0, 0, 0, 0}};
    if (row < patch.rows && patch.whole(group)) {
      v[i] = memory::load_16(patch.x_group(group) + offset);
    }
    if (group == kGroups - 1) offset += patch.x_step;
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if (patch.elements[group] == 0 || patch.whole(group)) continue;
    const char* p = patch.x_group(group);
#pragma unroll
    for (int row = 0; row < kVectors / kGroups; ++row) {
      if (row < patch.rows) v[row * kGroups + group] = gather<Src>(p, patch.elements[group]);
      p += patch.x_step;
    }
  }
}

// ---- amax ---------------------------------------------------------------------------------------

// Largest magnitude over the finite elements alone: the slow path, for blocks whose largest
// magnitude is not finite.
template <typename Src>
__device__ __forceinline__ u32 finite_magnitude(const Vector& v) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < Src::kElements; ++i) {
    const u32 magnitude = Src::raw(v, i) & ~sign_bit<Src>();
    top = reduce::max(top, magnitude < Src::kInfinity ? magnitude : 0);
  }
  return top;
}

// ---- scale --------------------------------------------------------------------------------------

template <typename Src, int kFp8, bool kPow2>
__device__ __forceinline__ float encode_scale(u32 magnitude, float amax_epsilon) {
  constexpr float kMax = kFp8 == kE4M3 ? 448.0f : 57344.0f;
  float amax = Src::value(magnitude);
  if (amax < amax_epsilon) amax = amax_epsilon;
  if (amax == 0.0f) return 1.0f;
  u32 bits = __float_as_uint(__fdiv_rn(kMax, amax));
  if (bits == 0x7f800000u) bits = Src::kMaxFiniteBits;
  if constexpr (kPow2) bits &= 0xff800000u;
  return __uint_as_float(bits);
}

// Scales stored along the contiguous direction of a scale array: rounded up to 4 (those beyond
// `count` are written 1), or the caller's stride where it leaves less room.
__device__ __forceinline__ i64 padded_scales(i64 count, i64 stride) {
  const i64 padded = (count + 3) & ~i64{3};
  return padded < stride ? padded : stride;
}

__device__ __forceinline__ float decode_scale(float encode) { return __frcp_rn(encode); }

// ---- cast ---------------------------------------------------------------------------------------

// The codes of one Vector, in order, the first element in the lowest byte.
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
__device__ __forceinline__ Codes<Src> cast_vector(const Vector& v, float encode) {
  Codes<Src> codes;
#pragma unroll
  for (int w = 0; w < Codes<Src>::kWords; ++w) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(Src::value(Src::raw(v, 4 * w + i)), encode);
    codes.word[w] = cast_pair<kFp8>(x[1], x[0]) | cast_pair<kFp8>(x[3], x[2]) << 16;
  }
  return codes;
}

// The code of an element that is infinite or NaN. The hardware cast saturates infinity; here it
// becomes NaN (E4M3) or the infinity of its sign (E5M2). The NaN code does not rest on the cast's.
template <typename Src, int kFp8>
__device__ __forceinline__ u32 nonfinite_code(u32 raw) {
  const u32 magnitude = raw & ~sign_bit<Src>();
  if (kFp8 == kE4M3 || magnitude > Src::kInfinity) return 0x7fu;
  return raw == magnitude ? 0x7cu : 0xfcu;
}

// ---- output -------------------------------------------------------------------------------------

// Writes `count` codes, all of them in one access where `whole`; beyond them nothing is touched.
template <typename Src>
__device__ __forceinline__ void store(char* p, Codes<Src> codes, int count, bool whole) {
  if (whole) {
    if constexpr (Codes<Src>::kWords == 2) {
      memory::store_8(p, codes.word[0], codes.word[1]);
    } else {
      memory::store_4(p, codes.word[0]);
    }
    return;
  }
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

// Casts and writes the patch. encode_of(i) gives vector i's encode scale and is called by every
// thread for every i, because it may be a shuffle. Infinity and NaN are left to mark_nonfinite.
template <int kFp8, typename Src, int kVectors, int kGroups, int kGroupCols, int kRowStep,
          typename EncodeOf>
__device__ __forceinline__ void cast_and_store(
    const Patch<Src, kVectors, kGroups, kGroupCols, kRowStep>& patch, const Vector (&v)[kVectors],
    EncodeOf encode_of) {
  char* q = patch.q;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int row = i / kGroups, group = i % kGroups;
    const Codes<Src> codes = cast_vector<Src, kFp8>(v[i], encode_of(i));
    if (row < patch.rows) {
      store<Src>(q + group * kGroupCols, codes, patch.elements[group], patch.whole(group));
    }
    if (group == kGroups - 1) q += patch.q_step;
  }
}

// The slow path after cast_and_store: writes the codes of the patch's infinities and NaNs over what
// the cast left there. It reads x again, in rolled loops, so that the fast path carries none of its
// code or registers.
template <int kFp8, typename Src, int kVectors, int kGroups, int kGroupCols, int kRowStep>
__device__ __forceinline__ void mark_nonfinite(
    const Patch<Src, kVectors, kGroups, kGroupCols, kRowStep>& patch) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const char* x = patch.x_group(group);
    char* q = patch.q + group * kGroupCols;
#pragma unroll 1
    for (int row = 0; row < patch.rows; ++row, x += patch.x_step, q += patch.q_step) {
#pragma unroll 1
      for (int i = 0; i < patch.elements[group]; ++i) {
        const u32 raw = Src::load(x + i * Src::kElementBytes);
        if ((raw & ~sign_bit<Src>()) >= Src::kInfinity) {
          memory::store_1(q + i, nonfinite_code<Src, kFp8>(raw));
        }
      }
    }
  }
}

// ---- which tile ---------------------------------------------------------------------------------

struct Tile {
  i64 row, col;  // in tiles
};

// Columns fastest, so that tiles in flight together are neighbours in memory. 64-bit division costs
// about 100 instructions: only where the counts need it.
__device__ __forceinline__ Tile tile_at(u64 index, u64 column_tiles) {
  if (((index | column_tiles) >> 32) == 0) {
    const u32 row = static_cast<u32>(index) / static_cast<u32>(column_tiles);
    return {row, static_cast<u32>(index) - row * static_cast<u32>(column_tiles)};
  }
  const u64 row = index / column_tiles;
  return {static_cast<i64>(row), static_cast<i64>(index - row * column_tiles)};
}

}  // namespace quantize
