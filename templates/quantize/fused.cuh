// A fused source (fused_values.cuh) as the input of a kernel. FusedInput has TensorInput's members
// over 4 fp32 values a Vector: each input gives 8 bytes (16 of fp32) of a vector.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/fused_values.cuh"
#endif

namespace quantize {

template <typename P, typename E>
struct FusedInput : FusedValues<P, E> {
  using Base = FusedValues<P, E>;
  using Base::aligned;
  using Base::args;
  using Base::at;
  using Base::col;
  using Base::kElements;
  using Base::kLoadBytes;
  using Base::kLooksUp;
  using Base::kRowLoads;
  using Base::part_of;
  using Base::row_factor;
  using Base::stride;
  using Base::whole;
  using typename Base::In;
  using typename Base::Places;
  using typename Base::Src;

  // Vectors that are loaded before the first is computed: at most 32 words of raw inputs are kept.
  // In tiles of a transposed copy, which two blocks of 64 registers share an SM for, more than 16
  // spill.
  static constexpr int kWords = kLoadBytes / 4 * E::kInputs;
  static constexpr bool kOfTiles = P::kGroups == 1 && P::kRowStep == 1 && kLoadBytes == 8;
  static constexpr int kTogether = kWords > 16                                  ? 1
                                   : kWords > 8                                 ? 2
                                   : kOfTiles && (E::kInputs > 2 || E::kHalves) ? 3
                                   : kOfTiles || kWords > 2                     ? 4
                                                                                : 8;

  static constexpr int kEither = 2;  // whichever of two expressions the column has
  static constexpr int kEach = 3;    // both expressions, of the same columns

  __device__ __forceinline__ FusedInput(const Args& given, const P& patch) : Base(given, patch) {}

  // Loads all vectors of the patch, row by row; elements outside the tensor become zeros. Nearly
  // always every vector is whole. At the edges of the tensor a rolled loop loads one after the
  // other.
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

  // Loads the patch of one half, the left one first. The right one's values are computed with the
  // left one's and wait in `kept`, kThreads vectors apart.
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

  // Loads a patch that the tensor's edge cuts, or one of a misaligned tensor.
  __device__ __forceinline__ void load_edge(const P& patch, Vector (&v)[P::kVectors]) const {
    // The block's other threads wait for a row's vectors, so whole ones are loaded together.
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
      put(v, i, whole(patch, g) ? this->load_one(r, g) : this->gather(r, g, count));
    }
  }

  // ---- a row that comes straight to the registers: P::kSideBySide ----

  // Finds the addresses of the row's inputs here and not where they are used.
  __device__ __forceinline__ Places places() const {
    Places found;
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) {
      found.input[k] = ::hide_from_optimizer(at(k, 0, part_of(col).col));
    }
    return found;
  }
  // Loads the piece of a patch of one row. Elements outside the tensor become zeros.
  __device__ __forceinline__ void load_row(const P& patch, const Places& places,
                                           Vector (&v)[P::kVectors]) const {
    static_assert(P::kSideBySide && P::kVectors == 2, "a row is one piece");
    if (patch.rows == 0 || !whole(patch, 1)) return load_edge(patch, v);
    this->load_piece_at(places, 0, part_of(col), v);
  }

  // ---- rows on their way through shared memory while others are worked on: P::kSideBySide ----

  // One warp's raw inputs of the rows of two patches, kRows each. A lane reads only the 16 bytes
  // that it copied, so no barrier is needed.
  static constexpr int kRingRows = 2 * P::kRows;
  struct Ring {
    Vector raw[kRingRows][E::kInputs][kRowLoads][32];
  };
  // The lane's place in it.
  struct Rows {
    Ring& ring;
    const float* table;  // table of looked-up values; null: all are computed
    int lane = static_cast<int>(threadIdx.x) % 32;
    int place = 0;                 // the patch's first row in the ring
    const char* next[E::kInputs];  // the row to request next

    __device__ __forceinline__ Rows(Ring& of_warp, const float* known)
        : ring(of_warp), table(known) {}

    // Requests the next row if it is wanted.
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
  // Requests the rows of the first `patches` patches, two at most. Each patch is a group of copies.
  __device__ __forceinline__ void start(Rows& rows, int patches) const {
    go_on(rows);
#pragma unroll
    for (int r = 0; r < kRingRows; ++r) {
      rows.ask(*this, r, r < patches * P::kRows);
      if (r % P::kRows == P::kRows - 1) memory::commit_copies();
    }
    rows.place = 0;
  }
  // Makes this patch's rows the next to be requested.
  __device__ __forceinline__ void go_on(Rows& rows) const {
    const i64 from = part_of(col).col;
#pragma unroll
    for (int k = 0; k < E::kInputs; ++k) rows.next[k] = at(k, 0, from);
  }
  // Takes the patch's values. The patch after the next gets their places if it is `wanted`.
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
  // Sets v[index] = vector by selects, so that v stays in registers although the index is known
  // only at run time.
  static __device__ __forceinline__ void put(Vector (&v)[P::kVectors], int index,
                                             const Vector& vector) {
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      if (i == index) v[i] = vector;
    }
  }

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
      Base::template compute_piece<kPart, kLooksUp>(raw, factor, v[kStep * r], v[kStep * r + 1],
                                                    rows.table);
      if constexpr (P::kOfHalves) {  // common parts of both expressions are computed once
        Base::template compute_piece<1, kLooksUp>(raw, factor, v[kStep * r + 2], v[kStep * r + 3],
                                                  rows.table);
      }
      rows.ask(*this, rows.place + r, wanted);
    }
  }
  // Loads the whole vectors (kAll: all are whole), kTogether at a time: first their loads back to
  // back, then their values. The others become zeros.
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
          if (loads) in[j][k] = Base::load_input(p[k] + shift * In::kElementBytes);
          if (g == P::kGroups - 1) p[k] += stride(k) * (In::kElementBytes * P::kRowStep);
        }
        if constexpr (E::kRowFactor) {
          if (loads) factor[j] = row_factor(r);
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether && first + j < P::kVectors; ++j) v[first + j] = {{0, 0, 0, 0}};
      // This is never true. Without a branch that it cannot foresee, the assembler moves loads
      // behind the values of others, and fewer are in flight.
      if (args.cols == 0) continue;
#pragma unroll
      for (int j = 0; j < kTogether && first + j < P::kVectors; ++j) {
        const int r = (first + j) / P::kGroups, g = (first + j) % P::kGroups;
        if (!kAll && !(r < patch.rows && whole(patch, g))) continue;
        if constexpr (kPart == kEither) {
          const int here = part_of(col + P::offset(g)).index;
          v[first + j] = Base::compute_part(here, in[j], factor[j]);
        } else if constexpr (kPart == kEach) {
          v[first + j] = Base::template compute<0>(in[j], factor[j]);
          kept[(first + j) * kThreads] = Base::template compute<1>(in[j], factor[j]);
        } else {
          v[first + j] = Base::template compute<kPart>(in[j], factor[j]);
        }
      }
    }
  }
};

}  // namespace quantize
