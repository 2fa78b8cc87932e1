// The part of the tensor that one thread holds, and how it is loaded.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/elements.cuh"
#endif

namespace quantize {

__device__ __forceinline__ int clamp_count(i64 count, int limit) {
  return count < 0 ? 0 : count < limit ? static_cast<int>(count) : limit;
}

// Returns the row behind the last of a tile's tensor.
__device__ __forceinline__ i64 end_row(const Args& args) { return args.rows; }

// The patch of the tensor that one thread holds: kVectors vectors of 16 bytes. kGroups of them lie
// along a row, kGroupCols columns apart or in pairs that touch (kSideBySide), the rest kRowStep
// rows apart. Everything is counted from its first element in small numbers, so that the fast path
// spends its 64-bit arithmetic once.
template <typename Source, int kVectorCount, int kGroupCount, int kGroupStep, int kRowDistance,
          int kTouching = 1>
struct Patch {
  using Src = Source;
  static constexpr int kVectors = kVectorCount;
  static constexpr int kGroups = kGroupCount;
  static constexpr int kGroupCols = kGroupStep;
  static constexpr int kRowStep = kRowDistance;
  static constexpr int kRows = kVectors / kGroups;
  static constexpr bool kSideBySide = kTouching == 2;  // two vectors are 8 elements of one access
  static constexpr bool kOfHalves = false;
  static constexpr int kPieces = kGroups / kTouching;
  static_assert(kPieces * kTouching == kGroups, "a patch is whole pairs of vectors");
  static_assert(kRows * kGroups == kVectors, "a patch is whole rows of vectors");

  i64 row, col;
  int rows;  // rows of the patch that exist, 0..kRows
  int cols;  // columns that exist, from the first on

  template <typename View>
  __device__ __forceinline__ Patch(const View& args, i64 first_row, i64 first_col)
      : row(first_row),
        col(first_col),
        rows((clamp_count(end_row(args) - first_row, kRows * kRowStep) + kRowStep - 1) / kRowStep),
        cols(clamp_count(args.cols - first_col, kPieces * kGroupCols)) {}

  // Returns the columns from the first to group g's.
  static __device__ __forceinline__ constexpr int offset(int g) {
    return g / kTouching * kGroupCols + g % kTouching * Src::kElements;
  }
  // Returns how many elements of group g's vectors exist, 0..Src::kElements.
  __device__ __forceinline__ int elements(int g) const {
    const int left = cols - offset(g);
    return left < 0 ? 0 : left < Src::kElements ? left : Src::kElements;
  }
  // Returns whether every element of the patch exists.
  __device__ __forceinline__ bool whole() const { return rows == kRows && whole(kGroups - 1); }
  // Returns whether all of group g's elements exist. It must not use elements(): if a clamped count
  // is used and also compared with its limit, ptxas 13.0 takes both from one VIMNMX.RELU and
  // reports 0 as the limit.
  __device__ __forceinline__ bool whole(int g) const { return cols - offset(g) >= Src::kElements; }
};

// The same columns of both halves of the rows, a pair of vectors of each. It serves two expressions
// of the same inputs, the left and the right half.
template <typename Source, int kVectorCount>
struct PatchOfHalves : Patch<Source, kVectorCount, 4, 2 * Source::kElements, 1, 2> {
  using Base = Patch<Source, kVectorCount, 4, 2 * Source::kElements, 1, 2>;
  static constexpr bool kOfHalves = true;

  i64 half;  // columns

  __device__ __forceinline__ PatchOfHalves(const Args& args, i64 first_row, i64 first_col)
      : Base(args, first_row, first_col), half(args.cols / 2) {
    this->cols = clamp_count(half - first_col, 2 * Source::kElements);
  }

  // Returns the columns from the first to group g's, if a half has `half` columns.
  static __device__ __forceinline__ i64 offset(int g, i64 half) {
    return (g < 2 ? 0 : half) + g % 2 * Source::kElements;
  }
  __device__ __forceinline__ i64 offset(int g) const { return offset(g, half); }
  __device__ __forceinline__ int elements(int g) const { return Base::elements(g % 2); }
  __device__ __forceinline__ bool whole(int g) const { return Base::whole(g % 2); }
  __device__ __forceinline__ bool whole() const { return this->rows == Base::kRows && whole(1); }
};

// Returns `count` elements from p, loaded one by one, then zeros. The loop stays rolled (elements
// enter a 128-bit shift register from the top), because it serves misaligned tensors and the last
// columns and must not cost the fast path registers.
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

// The tensor itself as the source.
template <typename P>
struct TensorInput {
  using Src = typename P::Src;
  static constexpr bool kComputed = false;
  static constexpr bool kLooksUp = false;  // no table (fused.cuh)
  const char* x;
  i64 step;      // bytes from one row of the patch to the next
  bool aligned;  // pointer and stride allow whole vectors; the same in every thread

  __device__ __forceinline__ TensorInput(const Args& args, const P& patch)
      : x(static_cast<const char*>(args.x) +
          (patch.row * args.ldx + patch.col) * Src::kElementBytes),
        step(args.ldx * (Src::kElementBytes * P::kRowStep)) {
    const u64 bits =
        reinterpret_cast<u64>(args.x) | static_cast<u64>(args.ldx) * Src::kElementBytes;
    aligned = bits % sizeof(Vector) == 0;
  }
  // Finds the address here and not where it is used.
  __device__ __forceinline__ void settle() { x = ::hide_from_optimizer(x); }

  __device__ __forceinline__ const char* group(int g) const {
    return x + P::offset(g) * Src::kElementBytes;
  }
  __device__ __forceinline__ bool whole(const P& patch, int g) const {
    return aligned && patch.whole(g);
  }

  // Loads all vectors of the patch, row by row; elements outside the tensor become zeros.
  __device__ __forceinline__ void load(const P& patch, Vector (&v)[P::kVectors]) const {
    load_stored(patch, v);
    round_loaded<Src>(v);
  }

  // Returns the bits of one element, read again for the slow path.
  __device__ __forceinline__ u32 raw(int row, int g, int element) const {
    return Src::load(group(g) + row * step + element * Src::kElementBytes);
  }

 private:
  // Loads what memory holds. A whole patch is loaded back to back. Otherwise the vectors that one
  // access may take come first.
  __device__ __forceinline__ void load_stored(const P& patch, Vector (&v)[P::kVectors]) const {
    if (aligned && patch.whole()) {
      const char* p = x;
#pragma unroll
      for (int i = 0; i < P::kVectors; ++i) {
        v[i] = memory::load_16(p + P::offset(i % P::kGroups) * Src::kElementBytes);
        if (i % P::kGroups == P::kGroups - 1) p += step;
      }
      return;
    }
    i64 offset = 0;
#pragma unroll
    for (int i = 0; i < P::kVectors; ++i) {
      const int row = i / P::kGroups, g = i % P::kGroups;
      v[i] = {{0, 0, 0, 0}};
      if (row < patch.rows && whole(patch, g)) v[i] = memory::load_16(group(g) + offset);
      if (g == P::kGroups - 1) offset += step;
    }
#pragma unroll
    for (int g = 0; g < P::kGroups; ++g) {
      if (patch.elements(g) == 0 || whole(patch, g)) continue;
      const char* p = group(g);
#pragma unroll
      for (int row = 0; row < P::kRows; ++row) {
        if (row < patch.rows) v[row * P::kGroups + g] = gather<Src>(p, patch.elements(g));
        p += step;
      }
    }
  }
};

// ---- which rows ---------------------------------------------------------------------------------
// A tile sees the arguments as they are, unless the rows of x are groups (groups.cuh).

// Return the row of x with which the tile's tensor begins, the row whose row-wise scale is the
// first of its array, and the rows of that array.
__device__ __forceinline__ i64 first_row(const Args&) { return 0; }
__device__ __forceinline__ i64 scale_origin(const Args&) { return 0; }
__device__ __forceinline__ i64 scale_rows(const Args& args) { return args.rows; }
// Return the tensor's first column in the transposed copy, its columns with their padding, and
// whether it is the last to write into a run of scales.
__device__ __forceinline__ i64 start_column(const Args&) { return 0; }
__device__ __forceinline__ i64 padded_columns(const Args& args) {
  return (args.rows + 15) & ~i64{15};
}
__device__ __forceinline__ bool is_last(const Args&) { return true; }

template <int kWalk>
struct Walk;  // groups.cuh has the others

template <>
struct Walk<0> {
  using View = Args;
  template <int kThreads>
  using BlockView = Args;  // as a thread block of one tile sees them
  static constexpr bool kMasked = false;
  template <int kTileRows>
  static __device__ __forceinline__ i64 slots(const Args& args) {
    return (args.rows + kTileRows - 1) / kTileRows;
  }
  template <int kTileRows>
  static __device__ __forceinline__ const Args& enter(const Args& args, i64&) {
    return args;
  }
  template <int kTileRows, bool kOneAGroup, int kThreads>
  static __device__ __forceinline__ const Args& enter_block(const Args& args, i64&) {
    return args;
  }
};

// ---- which tile ---------------------------------------------------------------------------------

struct Tile {
  i64 row, col;  // in tiles
};

// Returns tile `index` of a grid whose rows have `inner` tiles. Tiles that are in flight together
// are neighbours along the rows. 64-bit division costs about 100 instructions and is done only if
// the counts need it.
__device__ __forceinline__ Tile tile_at(u64 index, u64 inner) {
  if (((index | inner) >> 32) == 0) {
    const u32 row = static_cast<u32>(index) / static_cast<u32>(inner);
    return {row, static_cast<u32>(index) - row * static_cast<u32>(inner)};
  }
  const u64 row = index / inner;
  return {static_cast<i64>(row), static_cast<i64>(index - row * inner)};
}
// Returns the tile, which is found here and not where it is used.
__device__ __forceinline__ Tile settled(const Tile& tile) {
  return {::hide_from_optimizer(tile.row), ::hide_from_optimizer(tile.col)};
}
__device__ __forceinline__ Tile turned(const Tile& tile) { return {tile.col, tile.row}; }

}  // namespace quantize
