// A pointwise expression of up to four tensors as the source: what is quantised is computed where
// it is loaded, in fp32, and never in memory. The emitter writes the expression as the policy E:
//
//   kFirst, kInputs     the tensors that are loaded, x[kFirst] on (value() calls the first x0)
//   kType               their element type
//   kHalves             two expressions, of the left and the right half of the columns; the inputs
//                       have half the columns
//   kWeight             x1 is one row for all
//   kRowFactor          x2 is no tensor: the row's 1 / rms (rstd)
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

// What the cast sees, as fp32 [rows][cols].
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

template <typename P, typename E>
struct FusedInput {
  using Src = typename P::Src;
  using In = Source<E::kType>;
  static_assert(Src::kElementBytes == 4, "a fused source is fp32");
  static constexpr int kElements = Src::kElements;
  static constexpr int kLoadBytes = kElements * In::kElementBytes;  // of one input and vector
  static constexpr int kRowLoads = 2 * kLoadBytes / 16;  // of one input and two vectors that touch
  // Vectors loaded before the first is computed: at most 32 words of raw inputs are kept. In tiles
  // of a transposed copy, where 64 registers let two blocks share an SM, 16: with more they spill.
  static constexpr int kWords = kLoadBytes / 4 * E::kInputs;
  static constexpr bool kOfTiles = P::kGroups == 1 && P::kRowStep == 1 && kLoadBytes == 8;
  static constexpr int kTogether = kWords > 16                                  ? 1
                                   : kWords > 8                                 ? 2
                                   : kOfTiles && (E::kInputs > 2 || E::kHalves) ? 3
                                   : kOfTiles || kWords > 2                     ? 4
                                                                                : 8;

  static constexpr int kEither = 2;  // of two expressions
  static constexpr int kEach = 3;    // both, of the same columns

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
    aligned = bits % (P::kSideBySide ? sizeof(Vector) : kLoadBytes) == 0;
    if (P::kSideBySide && E::kHalves && half() % (2 * kElements) != 0) aligned = false;
  }

  // All vectors of the patch, row by row; zeros where the tensor has no element. Nearly always
  // every vector is whole; at the edges of the tensor one after the other is asked for, in a rolled
  // loop.
  __device__ __forceinline__ void load(const P& patch, Vector (&v)[P::kVectors]) const {
    constexpr bool kOneHalf = E::kHalves && P::kGroups == 1;
    if (aligned && patch.whole()) {
      if (kOneHalf && part_of(col).index != 0) {
        load_vectors<kOneHalf ? 1 : 0, true>(patch, v);
      } else {
        load_vectors<E::kHalves && !kOneHalf ? kEither : 0, true>(patch, v);
      }
    } else {
      load_edge(patch, v);
    }
    tap(patch, v);
  }
  __device__ __forceinline__ void tap(const P& patch, const Vector (&v)[P::kVectors]) const {
    if constexpr (E::kTap) write_tap(args, patch, v);
  }

  // Where a thread has the same patch of both halves, the left before the right: the right one's
  // values, computed with the left one's, wait in `kept`, kThreads vectors apart.
  template <int kThreads>
  __device__ __forceinline__ void load_half(const P& patch, bool right, Vector* kept,
                                            Vector (&v)[P::kVectors]) const {
    if (!(aligned && patch.whole())) {
      load_edge(patch, v);
    } else if (right) {
#pragma unroll
      for (int i = 0; i < P::kVectors; ++i) v[i] = kept[i * kThreads];
    } else {
      load_vectors<kEach, true, kThreads>(patch, v, kept);
    }
    tap(patch, v);
  }

  // A patch that the tensor's edge cuts, or one of a misaligned tensor.
  __device__ __forceinline__ void load_edge(const P& patch, Vector (&v)[P::kVectors]) const {
    // Along a row the block's other threads wait for these: their whole vectors come together.
    constexpr bool kTogetherToo = P::kGroups > 1 && !P::kSideBySide;
    if constexpr (kTogetherToo) {
      load_vectors<E::kHalves ? kEither : 0, false>(patch, v);
    } else {
#pragma unroll
      for (int i = 0; i < P::kVectors; ++i) v[i] = {{0, 0, 0, 0}};
    }
#pragma unroll 1
    for (int i = 0; i < P::kVectors; ++i) {
      const int r = i / P::kGroups, g = i % P::kGroups;
      const int count = r < patch.rows ? patch.elements(g) : 0;
      if (count == 0 || (kTogetherToo && whole(patch, g))) continue;
      put(v, i, whole(patch, g) ? load_one(r, g) : gather(r, g, count));
    }
  }

  // The bits of one element, computed again: for the slow path.
  __device__ __forceinline__ u32 raw(int r, int g, int element) const {
    const Part part = part_of(col + offset(g) + element);
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) x[k] = In::value(In::load(at(k, r, part.col)));
    if constexpr (E::kRowFactor) x[2] = row_factor(r);
    const float known = known_of(x);
    if constexpr (E::kHalves) {
      if (part.index != 0) {
        return __float_as_uint(E::template value<1>(x[0], x[1], x[2], x[3], known));
      }
    }
    return __float_as_uint(E::template value<0>(x[0], x[1], x[2], x[3], known));
  }

  // Input k's element of a row of the patch.
  __device__ __forceinline__ const char* at(int k, int r, i64 column) const {
    return static_cast<const char*>(base(k)) +
           ((row + r * P::kRowStep) * stride(k) + column) * In::kElementBytes;
  }

  // ---- vector by vector ----

  // Whole loads start at multiples of kElements, and half is one: none crosses it.
  __device__ __forceinline__ bool whole(const P& patch, int g) const {
    return aligned && patch.whole(g);
  }
  // A vector that is whole.
  __device__ __forceinline__ Vector load_one(int r, int g) const {
    const Part part = part_of(col + offset(g));
    Vector in[E::kInputs];
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) in[k] = load_input(at(k, r, part.col));
    return compute_part(part.index, in, E::kRowFactor ? row_factor(r) : 0.0f);
  }

  // The two vectors of a piece that is whole, of 8 columns.
  __device__ __forceinline__ void load_piece(int r, int piece, Vector (&v)[2]) const {
    const Part part = part_of(col + P::offset(2 * piece));
    Vector raw[E::kInputs][kRowLoads];
#pragma unroll
    for (int i = 0; i < E::kInputs * kRowLoads; ++i) {
      const char* p = at(i / kRowLoads, r, part.col);
      raw[i / kRowLoads][i % kRowLoads] = memory::load_16(p + i % kRowLoads * sizeof(Vector));
    }
    const float factor = E::kRowFactor ? row_factor(r) : 0.0f;
    if (E::kHalves && part.index != 0) {
      compute_piece<E::kHalves ? 1 : 0>(raw, factor, v[0], v[1]);
    } else {
      compute_piece<0>(raw, factor, v[0], v[1]);
    }
  }

  // Of two vectors that touch.
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

  static constexpr bool kComputed = true;

  // ---- values that a table holds ----
  static constexpr bool kLooksUp = E::kLooksUp;
  // Of four values; the last is computed meanwhile. 16384x7168 GELU, microseconds: four 104.6,
  // three 102.1, two 111.6, one 133 (shared memory has three conflicts a lookup, and issue slots to
  // spare).
  static constexpr int kLookedUp = 3;
  // Of a function of one bf16 input, of magnitudes kFirstMagnitude to kLastMagnitude: as many at
  // most as have different lowest 12 bits, which are their place; the negative ones are in the
  // second half.
  static constexpr u32 kHalfTable = 4096;
  static constexpr int kTableBytes = 2 * kHalfTable * sizeof(float);

  // By all threads of the block; before a barrier.
  template <int kThreads>
  static __device__ __forceinline__ void fill(float* table) {
    constexpr u32 kCount = E::kLastMagnitude - E::kFirstMagnitude + 1;
    static_assert(kCount <= kHalfTable, "every magnitude has a place");
#pragma unroll 1
    for (u32 i = threadIdx.x; i < kCount; i += kThreads) {
      const u32 magnitude = E::kFirstMagnitude + i, place = magnitude % kHalfTable;
      table[place] = E::looked_up(In::value(magnitude));
      table[place + kHalfTable] = E::looked_up(In::value(magnitude | 0x8000u));
    }
  }
  // Of two inputs, the lower half of the word first.
  static __device__ __forceinline__ void look_up(const float* table, u32 word, float& first,
                                                 float& second) {
    constexpr u32 kBoth = 0x10001u, kPlace = (kHalfTable - 1) * kBoth;
    const u32 known =
        arithmetic::min_u16x2(arithmetic::max_u16x2(word & 0x7fff7fffu, E::kFirstMagnitude * kBoth),
                              E::kLastMagnitude * kBoth);
    // The sign lands above the place.
    const u32 places = (word >> 3 & ~kPlace) | (known & kPlace);
    first = table[places & (2 * kHalfTable - 1)];
    second = table[places >> 16];
  }

  // ---- rows on their way through shared memory while others are worked on: P::kSideBySide ----

  // Of one warp: the raw inputs of two patches' rows, kRows below each other. A lane copies and
  // reads its own 16 bytes alone, so that no barrier is needed.
  static constexpr int kRingRows = 2 * P::kRows;
  struct Ring {
    Vector raw[kRingRows][E::kInputs][kRowLoads][32];
  };
  // The lane's place in it.
  struct Rows {
    Ring& ring;
    const float* table;  // of values looked up; null: they are computed
    int lane = static_cast<int>(threadIdx.x) % 32;
    int place = 0;                 // of the ring, of the patch's first row
    const char* next[E::kInputs];  // of the row to be asked for

    __device__ __forceinline__ Rows(Ring& of_warp, const float* known)
        : ring(of_warp), table(known) {}

    // Asks for the next row.
    __device__ __forceinline__ void ask(const FusedInput& input, int at, bool wanted) {
#pragma unroll
      for (int k = 0; k < E::kInputs; ++k) {
#pragma unroll
        for (int i = 0; i < kRowLoads; ++i) {
          memory::copy_16(&ring.raw[at][k][i][lane], next[k] + i * sizeof(Vector), wanted);
        }
        next[k] += input.stride(k) * In::kElementBytes;
      }
    }
  };
  // Asks for the rows of the first `patches` patches, of two at most. A group of copies a patch.
  __device__ __forceinline__ void start(Rows& rows, int patches) const {
    go_on(rows);
#pragma unroll
    for (int r = 0; r < kRingRows; ++r) {
      rows.ask(*this, r, r < patches * P::kRows);
      if (r % P::kRows == P::kRows - 1) memory::commit_copies();
    }
    rows.place = 0;
  }
  // The next rows asked for are those of this patch.
  __device__ __forceinline__ void go_on(Rows& rows) const {
    const i64 from = part_of(col).col;
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) rows.next[k] = at(k, 0, from);
  }
  // The patch's values. Their places are given to the patch after the next where that is `wanted`.
  __device__ __forceinline__ void take(Rows& rows, bool wanted, Vector (&v)[P::kVectors]) const {
    memory::wait_copies<1>();
    if (E::kHalves && !P::kOfHalves && part_of(col).index != 0) {
      take_part<E::kHalves ? 1 : 0>(rows, wanted, v);
    } else {
      take_part<0>(rows, wanted, v);
    }
    memory::commit_copies();
    rows.place = P::kRows - rows.place;
  }

 private:
  template <int kPart>
  __device__ __forceinline__ void take_part(Rows& rows, bool wanted,
                                            Vector (&v)[P::kVectors]) const {
#pragma unroll
    for (int r = 0; r < P::kRows; ++r) {
      Vector raw[E::kInputs][kRowLoads];
#pragma unroll
      for (int i = 0; i < E::kInputs * kRowLoads; ++i) {
        raw[i / kRowLoads][i % kRowLoads] =
            rows.ring.raw[rows.place + r][i / kRowLoads][i % kRowLoads][rows.lane];
      }
      const float factor = E::kRowFactor ? row_factor(r) : 0.0f;
      constexpr int kStep = P::kGroups;
      compute_piece<kPart, kLooksUp>(raw, factor, v[kStep * r], v[kStep * r + 1], rows.table);
      if constexpr (P::kOfHalves) {  // what both expressions hold is computed once
        compute_piece<1, kLooksUp>(raw, factor, v[kStep * r + 2], v[kStep * r + 3], rows.table);
      }
      rows.ask(*this, rows.place + r, wanted);
    }
  }
  __device__ __forceinline__ i64 half() const { return args.cols / 2; }
  // The patch's.
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
  // The part of the source that may be looked up.
  static __device__ __forceinline__ float known_of(const float (&x)[4]) {
    return E::kLooksUp ? E::looked_up(x[0]) : 0.0f;
  }

  template <int kPart, bool kFromTable = false>
  static __device__ __forceinline__ Vector compute(const Vector (&in)[E::kInputs], float factor,
                                                   const float* table = nullptr) {
    float known[kElements];
    if constexpr (kFromTable) {
      look_up(table, in[0].word[0], known[0], known[1]);
      look_up(table, in[0].word[1], known[2], known[3]);
    }
    Vector v;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int k = 0; k < E::kInputs; ++k) x[k] = In::value(In::raw(in[k], e));
      if constexpr (E::kRowFactor) x[2] = factor;
      if (!kFromTable || e >= kLookedUp) known[e] = known_of(x);
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

  // Where it is known at run time only.
  static __device__ __forceinline__ Vector compute_part(int part, const Vector (&in)[E::kInputs],
                                                        float factor) {
    if constexpr (E::kHalves) {
      if (part != 0) return compute<1>(in, factor);
    }
    return compute<0>(in, factor);
  }

  // Vectors that are whole (kAll: all are), kTogether at a time: their loads back to back, then
  // their values. The others become zeros.
  template <int kPart, bool kAll, int kThreads = 0>
  __device__ __forceinline__ void load_vectors(const P& patch, Vector (&v)[P::kVectors],
                                               Vector* kept = nullptr) const {
    const Part part = part_of(col);
    const char* p[E::kInputs];
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) p[k] = at(k, 0, part.col);
#pragma unroll
    for (int first = 0; first < P::kVectors; first += kTogether) {
      Vector in[kTogether][E::kInputs];
      float factor[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether && first + j < P::kVectors; ++j) {
        const int r = (first + j) / P::kGroups, g = (first + j) % P::kGroups;
        const bool loads = kAll || (r < patch.rows && whole(patch, g));
        const i64 shift = part_of(col + P::offset(g)).col - part.col;
        factor[j] = 0.0f;
#pragma unroll
        for (int k = 0; k < E::kInputs; ++k) {
          in[j][k] = {{0, 0, 0, 0}};
          if (loads) in[j][k] = load_input(p[k] + shift * In::kElementBytes);
          if (g == P::kGroups - 1) p[k] += stride(k) * (In::kElementBytes * P::kRowStep);
        }
        if constexpr (E::kRowFactor) {
          if (loads) factor[j] = row_factor(r);
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether && first + j < P::kVectors; ++j) v[first + j] = {{0, 0, 0, 0}};
      // Never so. Without a branch that it cannot foresee, the assembler moves loads behind the
      // values of others, and fewer are in flight.
      if (args.cols == 0) continue;
#pragma unroll
      for (int j = 0; j < kTogether && first + j < P::kVectors; ++j) {
        const int r = (first + j) / P::kGroups, g = (first + j) % P::kGroups;
        if (!kAll && !(r < patch.rows && whole(patch, g))) continue;
        if constexpr (kPart == kEither) {
          const int here = part_of(col + P::offset(g)).index;
          v[first + j] = compute_part(here, in[j], factor[j]);
        } else if constexpr (kPart == kEach) {
          v[first + j] = compute<0>(in[j], factor[j]);
          kept[(first + j) * kThreads] = compute<1>(in[j], factor[j]);
        } else {
          v[first + j] = compute<kPart>(in[j], factor[j]);
        }
      }
    }
  }
};

}  // namespace quantize
