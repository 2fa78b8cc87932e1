// Common parts of all quantise kernels: their argument, element types, and the decoding of x.
//
// A kernel is composed of source -> amax -> scale -> cast -> outputs. Its body decides which
// threads hold which vectors and how their maxima are combined; the other parts are in this file
// and its neighbours. Their arithmetic is bit for bit that of docs/numerics.md ("Quantising"):
//   amax         = max |x| over the finite x of a block, raised to epsilon; 0 -> encode_scale = 1
//   encode_scale = fp8_max / amax, correctly rounded; infinite -> the input type's largest finite
//                  number; power-of-two formats: its exponent alone; e8m0: see scale.cuh
//   q            = fp8(fp32(x * encode_scale)); NaN -> NaN; infinity -> NaN (E4M3), infinity (E5M2)
//   scale        = 1 / encode_scale, correctly rounded, possibly subnormal
// Every rounding is an explicit _rn intrinsic: no contraction, no flush to zero.
#pragma once
#ifndef OCTILE_EMITTED
#include "lib/arithmetic.cuh"
#include "lib/cast.cuh"
#include "lib/launch.cuh"
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
constexpr int kFP32AsBF16 = 105;  // no octile_dtype: fp32 that is rounded to bf16 when it is loaded

// Granularities, by the values of octile_granularity.
constexpr int kPerTensor = 1;
constexpr int kPerRow = 2;
constexpr int k1x128 = 3;
constexpr int k128x128 = 4;
constexpr int k1x32 = 5;
constexpr int k32x32 = 6;

// The only kernel parameter. QuantizeKernelArgs on the host (generator/quantize/kernel_args.h)
// describes each field.
struct Args {
  const void* x;
  void* q;
  void* scale;
  void* q_transposed;
  void* scale_transposed;
  u32* maxima;
  i64 rows, cols;
  i64 ldx, ldq, scale_ld;  // elements; the scales' in scales
  i64 ldq_transposed, scale_ld_transposed;
  i64 partials;
  float* encode_scale;
  u32* amax;
  const u32* skip;
  const void* x_scale;
  i64 x_scale_ld;
  const void* more[3];
  i64 more_ld[3];
  float* rstd;
  float* bias_gradient;
  float* bias_partials;
  float* tap;
  const int* groups_at;
  i64 groups;
  i64 scale_group_bytes;
  i64 range_row, range_col, range_last_row, range_end_col;
  u32* range_amax;
  u64* nonfinite;
};
static_assert(sizeof(Args) == 304, "QuantizeKernelArgs has 304 bytes");

// The only parameter of a kernel of stacked tensors: StackKernelArgs on the host, where its fields
// are described.
struct StackArgs {
  Args first;
  i64 x, q, scale, q_transposed, scale_transposed, x_scale, maxima, amax, skip;
};
static_assert(sizeof(StackArgs) == 376, "StackKernelArgs has 376 bytes");

template <typename T>
__device__ __forceinline__ T* moved(T* p, i64 bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<u64>(p) + static_cast<u64>(bytes));
}

// A thread block's tensor or range, and the block's number there.
template <typename Arguments>
struct Entered;

template <>
struct Entered<Args> {
  const Args& args;
  u64 block;
  __device__ __forceinline__ explicit Entered(const Args& one) : args(one), block(blockIdx.x) {}
};

// Each of the stacked tensors has the thread blocks of one blockIdx.y.
template <>
struct Entered<StackArgs> {
  Args args;
  u64 block;
  __device__ __forceinline__ explicit Entered(const StackArgs& all)
      : args(all.first), block(blockIdx.x) {
    const i64 tensor = blockIdx.y;
    args.x = moved(all.first.x, tensor * all.x);
    args.q = moved(all.first.q, tensor * all.q);
    args.scale = moved(all.first.scale, tensor * all.scale);
    args.q_transposed = moved(all.first.q_transposed, tensor * all.q_transposed);
    args.scale_transposed = moved(all.first.scale_transposed, tensor * all.scale_transposed);
    args.x_scale = moved(all.first.x_scale, tensor * all.x_scale);
    args.maxima = moved(all.first.maxima, tensor * all.maxima);
    if (all.first.amax != nullptr) args.amax = moved(all.first.amax, tensor * all.amax);
    if (all.first.encode_scale != nullptr)
      args.encode_scale = moved(all.first.encode_scale, tensor * all.amax);
    if (all.first.skip != nullptr) args.skip = moved(all.first.skip, tensor * all.skip);
  }
};

// Returns whether the caller's flag forbids any write. It is the same in every thread.
__device__ __forceinline__ bool skipped(const Args& args) {
  return args.skip != nullptr && memory::load_4(args.skip) != 0;
}

// std::conditional.
template <bool kFirst, typename A, typename B>
struct Conditional {
  using Type = A;
};
template <typename A, typename B>
struct Conditional<false, A, B> {
  using Type = B;
};

using Vector = memory::Words4;  // 16 bytes of x, as one thread loads them

// ---- source: what the bits of x mean ------------------------------------------------------------
// "Magnitude" is the bits without the sign; magnitudes order as unsigned integers, and those at or
// above kInfinity are infinity and NaN.

// Two 16-bit elements a word, the lower half first.
template <int kType>
struct Source16 {
  using Held = Vector;                      // what a thread keeps of a vector
  using Tops = Vector;                      // the largest of several vectors, element by element
  static constexpr bool kMadeAnew = false;  // a thread keeps codes and makes values at every use
  static constexpr bool kRounded =
      false;  // memory has values that are rounded once they are loaded
  static constexpr int kElementBytes = 2;
  static constexpr int kElements = 8;  // per Vector

  static __device__ __forceinline__ u32 raw(const Vector& v, int i) {
    return i % 2 == 0 ? v.word[i / 2] & 0xffffu : v.word[i / 2] >> 16;
  }
  static __device__ __forceinline__ u32 magnitude(const Vector& v) {
    const u32 both = larger(larger(v.word[0], v.word[1]), larger(v.word[2], v.word[3]));
    return reduce::max(both & 0x7fffu, unsigned_word(both) >> 16);
  }
  // Returns, element by element, the larger magnitude of two words. The signs mean nothing; a NaN
  // stays one.
  static __device__ __forceinline__ u32 larger(u32 a, u32 b) {
    return kType == kBF16 ? arithmetic::larger_bf16x2(a, b) : arithmetic::larger_fp16x2(a, b);
  }
  static __device__ __forceinline__ u32 unsigned_word(u32 word) { return word & 0x7fff7fffu; }
  // Returns element `i` of magnitudes kept in words.
  static __device__ __forceinline__ u32 pick(u32 word, int i) {
    return i % 2 == 0 ? word & 0xffffu : word >> 16;
  }
  static constexpr int kElementsAWord = 2;
  template <u32 kInfinityBits>
  static __device__ __forceinline__ u32 zero_nonfinite(u32 word) {
    const u32 low = (word & 0x7fffu) < kInfinityBits ? 0x0000ffffu : 0;
    const u32 high = (word >> 16 & 0x7fffu) < kInfinityBits ? 0xffff0000u : 0;
    return word & (low | high);
  }
  static __device__ __forceinline__ u32 load(const void* p) { return memory::load_2(p); }
};

template <int kType>
struct Source;

template <>
struct Source<kBF16> : Source16<kBF16> {
  static constexpr u32 kInfinity = 0x7f80u;
  static constexpr u32 kMaxFiniteBits = 0x7f7f0000u;  // as fp32
  static __device__ __forceinline__ float value(u32 raw) {
    return cast::from_bf16(static_cast<u16>(raw));
  }
  static __device__ __forceinline__ u32 finite_only(u32 word) {
    return Source16::template zero_nonfinite<kInfinity>(word);
  }
};

template <>
struct Source<kFP16> : Source16<kFP16> {
  static constexpr u32 kInfinity = 0x7c00u;
  static constexpr u32 kMaxFiniteBits = 0x477fe000u;  // 65504
  static __device__ __forceinline__ float value(u32 raw) {
    return cast::from_fp16(static_cast<u16>(raw));
  }
  static __device__ __forceinline__ u32 finite_only(u32 word) {
    return Source16::template zero_nonfinite<kInfinity>(word);
  }
};

template <>
struct Source<kFP32> {
  using Held = Vector;
  using Tops = Vector;
  static constexpr bool kMadeAnew = false;
  static constexpr bool kRounded = false;
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
  static __device__ __forceinline__ u32 larger(u32 a, u32 b) {
    return __float_as_uint(arithmetic::max(fabsf(value(a)), fabsf(value(b))));
  }
  static __device__ __forceinline__ u32 unsigned_word(u32 word) { return word & 0x7fffffffu; }
  static __device__ __forceinline__ u32 pick(u32 word, int) { return word; }
  static constexpr int kElementsAWord = 1;
  static __device__ __forceinline__ u32 finite_only(u32 word) {
    return (word & 0x7fffffffu) < kInfinity ? word : 0;
  }
  static __device__ __forceinline__ u32 load(const void* p) { return memory::load_4(p); }
};

// fp32 in memory, of which amax and cast see the bf16 that it is rounded to.
template <>
struct Source<kFP32AsBF16> : Source<kFP32> {
  static constexpr bool kRounded = true;
  static constexpr u32 kMaxFiniteBits = Source<kBF16>::kMaxFiniteBits;
  static __device__ __forceinline__ u32 load(const void* p) {
    u32 raw = memory::load_4(p), unused = 0;
    cast::round_to_bf16(raw, unused);
    return raw;
  }
};

// Makes loaded vectors what amax and cast see. It follows all loads: between them, rounding costs
// registers.
template <typename Src, int kVectors>
__device__ __forceinline__ void round_loaded(Vector (&v)[kVectors]) {
  if constexpr (Src::kRounded) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      cast::round_to_bf16(v[i].word[0], v[i].word[1]);
      cast::round_to_bf16(v[i].word[2], v[i].word[3]);
    }
  }
}

// fp32 for kernels that instructions limit: maxima are floats, whose sign an operand drops for
// nothing. A NaN stays one. (Integer maxima let ptxas use fewer registers.)
struct Computed : Source<kFP32> {
  static __device__ __forceinline__ u32 magnitude(const Vector& v) {
    float top = fabsf(value(v.word[0]));
#pragma unroll
    for (int w = 1; w < 4; ++w) top = arithmetic::max(top, fabsf(value(v.word[w])));
    return __float_as_uint(top);
  }
};

template <typename Src>
__device__ __forceinline__ constexpr u32 sign_bit() {
  return 1u << (8 * Src::kElementBytes - 1);
}

// Returns element `i` of a vector that a thread keeps.
template <typename Src>
__device__ __forceinline__ float value_at(const Vector& v, int i) {
  return Src::value(Src::raw(v, i));
}

// Return the largest elements of one vector, and raise them to those of another.
template <typename Src>
__device__ __forceinline__ Vector tops_of(const Vector& v) {
  return v;
}
template <typename Src>
__device__ __forceinline__ void raise_tops(Vector& top, const Vector& v) {
#pragma unroll
  for (int w = 0; w < 4; ++w) top.word[w] = Src::larger(top.word[w], v.word[w]);
}

// Returns the magnitudes without the signs that larger() leaves.
template <typename Src>
__device__ __forceinline__ Vector magnitudes_of(const Vector& v) {
  return {{Src::unsigned_word(v.word[0]), Src::unsigned_word(v.word[1]),
           Src::unsigned_word(v.word[2]), Src::unsigned_word(v.word[3])}};
}

// Returns the maxima of columns over the rows of a warp, whose lanes hold them: kLanes lanes lie
// along a row. Lanes below kLanes get all of them, without signs.
template <typename Src, int kLanes>
__device__ __forceinline__ typename Src::Tops over_rows(typename Src::Tops top) {
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) {
#pragma unroll
    for (u32& word : top.word) {
      word = Src::larger(word, __shfl_xor_sync(0xffffffffu, word, distance));
    }
  }
  return magnitudes_of<Src>(top);
}

// Returns the maximum of column `column` over kParts rows of such vectors.
template <typename Src, int kParts, int kLanes>
__device__ __forceinline__ u32 column_top(const typename Src::Tops (*parts)[kLanes], int column) {
  const int element = column % Src::kElements;
  u32 top = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const typename Src::Tops& v = parts[part][column / Src::kElements];
    top = reduce::max(top, Src::pick(v.word[element / Src::kElementsAWord], element));
  }
  return top;
}

// Returns value[i] by selects. A run-time index would put the array into memory.
template <typename T, int kCount>
__device__ __forceinline__ T picked(const T (&value)[kCount], int i) {
  T one = value[0];
#pragma unroll
  for (int j = 1; j < kCount; ++j) {
    if (j == i) one = value[j];
  }
  return one;
}

// See hide_from_optimizer (types.cuh).
template <typename Held, int kVectors>
__device__ __forceinline__ void hide_from_optimizer(Held (&v)[kVectors]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (u32& word : v[i].word) word = ::hide_from_optimizer(word);
  }
}

// Replaces infinities and NaNs by zeros, as amax and cast should see them. The codes of those
// elements are written over the zeros' at the end.
template <typename Src, int kVectors>
__device__ __forceinline__ void drop_nonfinite(Vector (&v)[kVectors]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int w = 0; w < 4; ++w) v[i].word[w] = Src::finite_only(v[i].word[w]);
  }
}

// Finds the largest finite magnitude of each vector. Returns whether there were infinities or NaNs,
// which it drops.
template <typename Src, int kVectors>
__device__ __forceinline__ bool measure(typename Src::Held (&v)[kVectors],
                                        u32 (&magnitudes)[kVectors]) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    magnitudes[i] = Src::magnitude(v[i]);
    top = reduce::max(top, magnitudes[i]);
  }
  if (top < Src::kInfinity) return false;
  drop_nonfinite<Src>(v);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) magnitudes[i] = Src::magnitude(v[i]);
  return true;
}

}  // namespace quantize
