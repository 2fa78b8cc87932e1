// A pointwise expression of up to four tensors as the source. Its values are computed in fp32 when
// they are loaded and never stored. The emitter writes the expression as the policy E:
//
//   kFirst, kInputs     the tensors that are loaded, from x[kFirst] on (value() calls the first x0)
//   kType               their element type
//   kHalves             two expressions, of the left and the right half of the columns; the inputs
//                       have half the columns
//   kWeight             x1 is one row for all
//   kRowFactor          the value behind the tensors is the row's own (rstd): 1 / rms, or a weight
//   kTap                the values are also written to memory, as fp32
//   kLooksUp            a part of the value comes from a table (fused_table.cuh), kFirstMagnitude,
//                       kLastMagnitude, kTableHalf and looked_up() describe it
//   value<part>(x0, x1, x2, x3, known)
//
// This file computes values from inputs; fused.cuh loads patches.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/fused_table.cuh"
#include "quantize/patch.cuh"
#endif

namespace quantize {

// Where a column of the source comes from: its expression, and its column in the inputs.
struct Part {
  int index;
  i64 col;
};

// Writes what the cast sees, as fp32 [rows][cols].
template <typename P>
__device__ __forceinline__ void write_tap(const Args& args, const P& patch,
                                          const Vector (&v)[P::kVectors]) {
  float* const out = args.tap + patch.row * args.cols + patch.col;
  const bool together =
      (reinterpret_cast<u64>(args.tap) | static_cast<u64>(args.cols) * 4) % sizeof(Vector) == 0;
#pragma unroll
  for (int i = 0; i < P::kVectors; ++i) {
    const int r = i / P::kGroups, g = i % P::kGroups, count = patch.elements(g);
    if (r >= patch.rows) continue;
    float* const p = out + r * P::kRowStep * args.cols + patch.offset(g);
    if (together && patch.whole(g)) {
      memory::store_16(p, v[i]);
    } else {
#pragma unroll
      for (int e = 0; e < P::Src::kElements; ++e) {
        if (e < count) memory::store_4(p + e, v[i].word[e]);
      }
    }
  }
}

// The values of a patch's elements, vector by vector.
template <typename P, typename E>
struct FusedValues {
  using Src = typename P::Src;
  using In = Source<E::kType>;
  using Table = LookupTable<E>;
  static_assert(Src::kElementBytes == 4, "a fused source is fp32");
  static constexpr int kElements = Src::kElements;
  static constexpr int kLoadBytes = kElements * In::kElementBytes;  // bytes of one input and vector
  static constexpr int kRowLoads = 2 * kLoadBytes / 16;  // of one input, two touching vectors
  static constexpr bool kComputed = true;
  static constexpr bool kLooksUp = E::kLooksUp;
  static constexpr int kTableBytes = Table::kBytes;

  const Args& args;
  i64 row, col;  // place of the patch
  bool aligned;  // every pointer and stride allows whole loads; the same in every thread

  __device__ __forceinline__ FusedValues(const Args& given, const P& patch)
      : args(given), row(patch.row), col(patch.col) {
    u64 bits = E::kHalves ? static_cast<u64>(half()) * In::kElementBytes : 0;
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) {
      bits |= reinterpret_cast<u64>(base(k)) | static_cast<u64>(stride(k)) * In::kElementBytes;
    }
    aligned = bits % (P::kSideBySide ? sizeof(Vector) : kLoadBytes) == 0;
    if (P::kSideBySide && E::kHalves && half() % (2 * kElements) != 0) aligned = false;
  }

  // Returns the bits of one element, computed again for the slow path.
  __device__ __forceinline__ u32 raw(int r, int g, int element) const {
    const Part part = part_of(col + offset(g) + element);
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) x[k] = In::value(In::load(at(k, r, part.col)));
    if constexpr (E::kRowFactor) x[E::kInputs] = row_factor(r);
    const float known = known_of(x);
    if constexpr (E::kHalves) {
      if (part.index != 0) {
        return __float_as_uint(E::template value<1>(x[0], x[1], x[2], x[3], known));
      }
    }
    return __float_as_uint(E::template value<0>(x[0], x[1], x[2], x[3], known));
  }

  // Returns the address of input k's element in a row of the patch.
  __device__ __forceinline__ const char* at(int k, int r, i64 column) const {
    return static_cast<const char*>(base(k)) +
           ((row + r * P::kRowStep) * stride(k) + column) * In::kElementBytes;
  }

  // Returns whether one load may take group g's vectors. No such load crosses the half, because
  // both begin at multiples of kElements.
  __device__ __forceinline__ bool whole(const P& patch, int g) const {
    return aligned && patch.whole(g);
  }
  // Returns a whole vector.
  __device__ __forceinline__ Vector load_one(int r, int g) const {
    const Part part = part_of(col + offset(g));
    Vector in[E::kInputs];
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) in[k] = load_input(at(k, r, part.col));
    return compute_part(part.index, in, E::kRowFactor ? row_factor(r) : 0.0f);
  }

  // Where the inputs of a piece are.
  struct Places {
    const char* input[E::kInputs];
  };
  // Loads the two vectors of a whole piece of 8 columns.
  __device__ __forceinline__ void load_piece(int r, int piece, Vector (&v)[2]) const {
    const Part part = part_of(col + P::offset(2 * piece));
    Places places;
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) places.input[k] = at(k, r, part.col);
    load_piece_at(places, r, part, v);
  }
  // Loads them from addresses that are known. `part`: the piece's.
  __device__ __forceinline__ void load_piece_at(const Places& places, int r, const Part& part,
                                                Vector (&v)[2]) const {
    Vector raw[E::kInputs][kRowLoads];
#pragma unroll
    for (int i = 0; i < E::kInputs * kRowLoads; ++i) {
      const char* const p = places.input[i / kRowLoads];
      raw[i / kRowLoads][i % kRowLoads] = memory::load_16(p + i % kRowLoads * sizeof(Vector));
    }
    const float factor = E::kRowFactor ? row_factor(r) : 0.0f;
    if (E::kHalves && part.index != 0) {
      compute_piece<E::kHalves ? 1 : 0>(raw, factor, v[0], v[1]);
    } else {
      compute_piece<0>(raw, factor, v[0], v[1]);
    }
  }

  // Computes two vectors that touch.
  template <int kPart, bool kFromTable = false>
  static __device__ __forceinline__ void compute_piece(const Vector (&raw)[E::kInputs][kRowLoads],
                                                       float factor, Vector& first, Vector& second,
                                                       const float* table = nullptr) {
    Vector in[E::kInputs];
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) in[k] = raw[k][0];
    first = compute<kPart, kFromTable>(in, factor, table);
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) {
      in[k] = raw[k][kRowLoads - 1];
      if (kRowLoads == 1) in[k] = {{in[k].word[2], in[k].word[3], 0, 0}};
    }
    second = compute<kPart, kFromTable>(in, factor, table);
  }

  // Returns `count` elements one by one, then zeros, in few registers: for misaligned tensors and
  // the last columns.
  __device__ __forceinline__ Vector gather(int r, int g, int count) const {
    Vector v = {{0, 0, 0, 0}};
#pragma unroll 1
    for (int i = 0; i < kElements; ++i) {
      v = {{v.word[1], v.word[2], v.word[3], i < count ? raw(r, g, i) : 0}};
    }
    return v;
  }
  // ---- addresses ----

  __device__ __forceinline__ i64 half() const { return args.cols / 2; }
  // Returns the columns from the patch's first to group g's.
  __device__ __forceinline__ i64 offset(int g) const {
    if constexpr (P::kOfHalves) {
      return P::offset(g, half());
    } else {
      return P::offset(g);
    }
  }
  __device__ __forceinline__ const void* base(int k) const {
    return E::kFirst + k == 0 ? args.x : args.more[E::kFirst + k - 1];
  }
  __device__ __forceinline__ i64 stride(int k) const {
    if (E::kWeight && E::kFirst + k == 1) return 0;
    return E::kFirst + k == 0 ? args.ldx : args.more_ld[E::kFirst + k - 1];
  }
  __device__ __forceinline__ Part part_of(i64 column) const {
    if (!E::kHalves || column < half()) return {0, column};
    return {1, column - half()};
  }
  __device__ __forceinline__ float row_factor(int r) const {
    return __uint_as_float(memory::load_4(args.rstd + row + r * P::kRowStep));
  }
  // Returns the part of the source that may be looked up.
  static __device__ __forceinline__ float known_of(const float (&x)[4]) {
    return E::kLooksUp ? E::looked_up(x[0]) : 0.0f;
  }

  // ---- arithmetic ----

  template <int kPart, bool kFromTable = false>
  static __device__ __forceinline__ Vector compute(const Vector (&in)[E::kInputs], float factor,
                                                   const float* table = nullptr) {
    float known[kElements];
    if constexpr (kFromTable) {
      Table::look_up(table, in[0].word[0], known[0], known[1]);
      Table::look_up(table, in[0].word[1], known[2], known[3]);
    }
    Vector v;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < E::kInputs; ++k) x[k] = In::value(In::raw(in[k], e));
      if constexpr (E::kRowFactor) x[E::kInputs] = factor;
      if (!kFromTable || e >= Table::kLookedUp) known[e] = known_of(x);
      v.word[e] = __float_as_uint(E::template value<kPart>(x[0], x[1], x[2], x[3], known[e]));
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

  // Computes a vector whose expression is known only at run time.
  static __device__ __forceinline__ Vector compute_part(int part, const Vector (&in)[E::kInputs],
                                                        float factor) {
    if constexpr (E::kHalves) {
      if (part != 0) return compute<1>(in, factor);
    }
    return compute<0>(in, factor);
  }
};

}  // namespace quantize
