// A pointwise expression of up to four tensors as the source: what is quantised is computed where
// it is loaded, in fp32, and never in memory. The emitter writes the expression as the policy E:
//
//   kInputs, kType      tensors x0.. that are loaded, and their element type
//   kHalves             two expressions, of the left and the right half of the columns; the inputs
//                       have half the columns
//   kRmsNorm            x1 is a weight, one row for all; x2 is the row's 1 / rms, an fp32 in memory
//   kTap                the values are also written to memory, as fp32
//   value<part>(x0, x1, x2, x3)
//
// FusedInput has TensorInput's members over 4 fp32 values a Vector: each input gives 8 bytes (16
// of fp32) of a vector.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/patch.cuh"
#endif

namespace quantize {

// Where a column of the source comes from: which expression, and which column of the inputs.
struct Part {
  int index;
  i64 col;
};

template <typename P, typename E>
struct FusedInput {
  using Src = typename P::Src;
  using In = Source<E::kType>;
  static_assert(Src::kElementBytes == 4, "a fused source is fp32");
  static constexpr int kElements = Src::kElements;
  static constexpr int kLoadBytes = kElements * In::kElementBytes;  // of one input and vector
  // Vectors loaded before the first is computed: at most 16 words of raw inputs are kept, 64 bytes
  // of a thread in flight beside the values that are there already.
  static constexpr int kWords = kLoadBytes / 4 * E::kInputs;
  static constexpr int kTogether = kWords >= 16 ? 1 : 16 / kWords;

  const Args& args;
  i64 row, col;  // of the patch
  bool aligned;  // every pointer and stride allows whole loads; the same in every thread

  __device__ __forceinline__ FusedInput(const Args& given, const P& patch)
      : args(given), row(patch.row), col(patch.col) {
    u64 bits = E::kHalves ? static_cast<u64>(half()) * In::kElementBytes : 0;
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) {
      bits |= reinterpret_cast<u64>(base(k)) | static_cast<u64>(stride(k)) * In::kElementBytes;
    }
    aligned = bits % kLoadBytes == 0;
  }

  // All vectors of the patch, row by row; zeros where the tensor has no element.
  __device__ __forceinline__ void load(const P& patch, Vector (&v)[P::kVectors]) const {
#pragma unroll
    for (int first = 0; first < P::kVectors; first += kTogether) {
      load_together(patch, v, first);
    }
#pragma unroll 1
    for (int g = 0; g < P::kGroups; ++g) {
      if (patch.elements(g) == 0 || whole(patch, g)) continue;
#pragma unroll 1
      for (int r = 0; r < patch.rows; ++r) {
        put(v, r * P::kGroups + g, gather(r, g, patch.elements(g)));
      }
    }
    if constexpr (E::kTap) tap(patch, v);
  }

  // The bits of one element, computed again: for the slow path.
  __device__ __forceinline__ u32 raw(int r, int g, int element) const {
    const Part part = part_of(col + g * P::kGroupCols + element);
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) x[k] = In::value(In::load(at(k, r, part.col)));
    if constexpr (E::kRmsNorm) x[2] = row_factor(r);
    if constexpr (E::kHalves) {
      if (part.index != 0) return __float_as_uint(E::template value<1>(x[0], x[1], x[2], x[3]));
    }
    return __float_as_uint(E::template value<0>(x[0], x[1], x[2], x[3]));
  }

 private:
  __device__ __forceinline__ i64 half() const { return args.cols / 2; }
  __device__ __forceinline__ const void* base(int k) const {
    return k == 0 ? args.x : args.more[k - 1];
  }
  __device__ __forceinline__ i64 stride(int k) const {
    if (E::kRmsNorm && k == 1) return 0;
    return k == 0 ? args.ldx : args.more_ld[k - 1];
  }
  __device__ __forceinline__ Part part_of(i64 column) const {
    if (!E::kHalves || column < half()) return {0, column};
    return {1, column - half()};
  }
  __device__ __forceinline__ const char* at(int k, int r, i64 column) const {
    return static_cast<const char*>(base(k)) +
           ((row + r * P::kRowStep) * stride(k) + column) * In::kElementBytes;
  }
  __device__ __forceinline__ float row_factor(int r) const {
    return __uint_as_float(memory::load_4(args.rstd + row + r * P::kRowStep));
  }
  // Whole loads start at multiples of kElements, and half is one: none crosses it.
  __device__ __forceinline__ bool whole(const P& patch, int g) const {
    return aligned && patch.elements(g) == kElements;
  }
  template <int kPart>
  static __device__ __forceinline__ Vector compute(const Vector (&in)[E::kInputs], float factor) {
    Vector v;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < E::kInputs; ++k) x[k] = In::value(In::raw(in[k], e));
      if constexpr (E::kRmsNorm) x[2] = factor;
      v.word[e] = __float_as_uint(E::template value<kPart>(x[0], x[1], x[2], x[3]));
    }
    return v;
  }

  static __device__ __forceinline__ Vector load_input(const char* p) {
    if constexpr (kLoadBytes == 16) {
      return memory::load_16(p);
    } else {
      const memory::Words2 words = memory::load_8(p);
      return {{words.word[0], words.word[1], 0, 0}};
    }
  }

  // kTogether vectors from `first` on: all their loads back to back, then their values.
  __device__ __forceinline__ void load_together(const P& patch, Vector (&v)[P::kVectors],
                                                int first) const {
    Vector in[kTogether][E::kInputs];
    float factor[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int r = (first + j) / P::kGroups, g = (first + j) % P::kGroups;
      factor[j] = 0.0f;
      const bool loads = first + j < P::kVectors && r < patch.rows && whole(patch, g);
      const Part part = part_of(col + g * P::kGroupCols);
#pragma unroll
      for (int k = 0; k < E::kInputs; ++k) {
        in[j][k] = {{0, 0, 0, 0}};
        if (loads) in[j][k] = load_input(at(k, r, part.col));
      }
      if constexpr (E::kRmsNorm) {
        if (loads) factor[j] = row_factor(r);
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (first + j >= P::kVectors) continue;
      const int r = (first + j) / P::kGroups, g = (first + j) % P::kGroups;
      const bool loaded = r < patch.rows && whole(patch, g);
      // What the tensor has not counts as zero, whatever the expression makes of zeros.
      v[first + j] = {{0, 0, 0, 0}};
      if (!loaded) continue;
      if constexpr (E::kHalves) {
        v[first + j] = part_of(col + g * P::kGroupCols).index == 0 ? compute<0>(in[j], factor[j])
                                                                   : compute<1>(in[j], factor[j]);
      } else {
        v[first + j] = compute<0>(in[j], factor[j]);
      }
    }
  }

  // `count` elements one by one, then zeros: misaligned tensors and the last columns, in few
  // registers (TensorInput's gather).
  __device__ __forceinline__ Vector gather(int r, int g, int count) const {
    Vector v = {{0, 0, 0, 0}};
#pragma unroll 1
    for (int i = 0; i < kElements; ++i) {
      v = {{v.word[1], v.word[2], v.word[3], i < count ? raw(r, g, i) : 0}};
    }
    return v;
  }
  // v[index] = vector, with an index known only at run time: as selects, so that v stays in
  // registers.
  static __device__ __forceinline__ void put(Vector (&v)[P::kVectors], int index,
                                             const Vector& vector) {
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      if (i == index) v[i] = vector;
    }
  }

  __device__ __forceinline__ void tap(const P& patch, const Vector (&v)[P::kVectors]) const {
    float* const out = args.tap + row * args.cols + col;
    const bool together =
        (reinterpret_cast<u64>(args.tap) | static_cast<u64>(args.cols) * 4) % sizeof(Vector) == 0;
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const int r = i / P::kGroups, g = i % P::kGroups, count = patch.elements(g);
      if (r >= patch.rows) continue;
      float* const p = out + r * P::kRowStep * args.cols + g * P::kGroupCols;
      if (together && count == kElements) {
        memory::store_16(p, v[i]);
      } else {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          if (e < count) memory::store_4(p + e, v[i].word[e]);
        }
      }
    }
  }
};

}  // namespace quantize
