// A range: consecutive elements of a row-major tensor [rows][cols], whose other elements lie
// elsewhere. Its first and last row may be cut anywhere.
//
// A warp takes 8 rows x 32 vectors of the whole tensor's grid (warp_tile.cu says why), so that a
// block of the tensor has the same lanes in every range. Elements outside the range are zeros,
// which raise no maximum.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/codes.cuh"
#include "quantize/scale.cuh"
#endif

namespace quantize {

__device__ __forceinline__ i64 padded_to_4(i64 count) { return (count + 3) & ~i64{3}; }

// The elements begin .. end of a vector, which are in the range.
struct Span {
  int begin, end;
  __device__ __forceinline__ bool empty() const { return begin >= end; }
  __device__ __forceinline__ bool whole(int elements) const {
    return begin == 0 && end == elements;
  }
};

// The vectors one thread holds of a range: kRows rows of one vector.
template <typename Source, int kRowCount>
struct RangePatch {
  using Src = Source;
  static constexpr int kRows = kRowCount;

  i64 row, col;
  // The range's first and last row and its columns there, counted from the patch and limited to it.
  int first_row, last_row;
  int first_element, last_element, elements;
  i64 offset;  // elements from the range's first to (row, col); negative above it
  i64 step;    // elements from row to row

  __device__ __forceinline__ RangePatch(const Args& args, const Tile& tile)
      : row((args.range_row & ~i64{kRows - 1}) + tile.row * kRows),
        col((tile.col * 32 + threadIdx.x % 32) * Src::kElements),
        first_row(clamp_count(args.range_row - row, kRows)),
        last_row(clamp_count(args.range_last_row - row + 1, kRows + 1) - 1),
        first_element(args.range_row < row ? 0 : clamp_count(args.range_col - col, Src::kElements)),
        last_element(clamp_count(args.range_end_col - col, Src::kElements)),
        elements(clamp_count(args.cols - col, Src::kElements)),
        offset((row - args.range_row) * args.cols + col - args.range_col),
        step(args.cols) {}

  __device__ __forceinline__ Span span(int i) const {
    return {i < first_row    ? Src::kElements
            : i == first_row ? first_element
                             : 0,
            i > last_row    ? 0
            : i == last_row ? last_element
                            : elements};
  }

  // Returns whether one access may take a vector of the patch, in an array that begins with the
  // range's first element.
  __device__ __forceinline__ bool aligned(const Args& args, const void* array, int bytes) const {
    const u64 bits = (reinterpret_cast<u64>(array) - static_cast<u64>(args.range_col) * bytes) |
                     static_cast<u64>(args.cols) * bytes;
    return bits % (Src::kElements * bytes) == 0;
  }

  __device__ __forceinline__ const char* source(const Args& args) const {
    return static_cast<const char*>(args.x) + offset * Src::kElementBytes;
  }

  __device__ __forceinline__ void load(const Args& args, Vector (&v)[kRows]) const {
    const bool whole = aligned(args, args.x, Src::kElementBytes);
    const char* p = source(args);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      v[i] = {{0, 0, 0, 0}};
      if (whole && span(i).whole(Src::kElements)) v[i] = memory::load_16(p);
      p += step * Src::kElementBytes;
    }
    p = source(args);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Span at = span(i);
      if (!at.empty() && !(whole && at.whole(Src::kElements))) v[i] = gather_span(p, at);
      p += step * Src::kElementBytes;
    }
    round_loaded<Src>(v);
  }

  // Returns the count of infinities and NaNs and writes their codes if kFp8 is a type. This slow
  // path reads x again.
  template <int kFp8>
  __device__ __forceinline__ u32 nonfinite(const Args& args) const {
    u32 found = 0;
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      const Span at = span(i);
#pragma unroll 1
      for (int j = at.begin; j < at.end; ++j) {
        const i64 element = offset + i * step + j;
        const u32 raw = Src::load(static_cast<const char*>(args.x) + element * Src::kElementBytes);
        if ((raw & ~sign_bit<Src>()) < Src::kInfinity) continue;
        ++found;
        if constexpr (kFp8 != 0) {
          memory::store_1(static_cast<char*>(args.q) + element, nonfinite_code<Src, kFp8>(raw));
        }
      }
    }
    return found;
  }

 private:
  static __device__ __forceinline__ Vector gather_span(const char* p, const Span& at) {
    Vector v = gather<Src>(p + at.begin * Src::kElementBytes, at.end - at.begin);
#pragma unroll 1
    for (int i = 0; i < at.begin; ++i) {  // zeros in front
      constexpr u32 kBits = 8 * Src::kElementBytes % 32;
      if constexpr (kBits == 0) {
        v = {{0, v.word[0], v.word[1], v.word[2]}};
      } else {
        v = {{v.word[0] << kBits, v.word[1] << kBits | v.word[0] >> (32 - kBits),
              v.word[2] << kBits | v.word[1] >> (32 - kBits),
              v.word[3] << kBits | v.word[2] >> (32 - kBits)}};
      }
    }
    return v;
  }
};

// Writes the codes of the elements in `at`; p is the address of element 0.
template <typename Src>
__device__ __forceinline__ void store_span(char* p, Codes<Src> codes, const Span& at,
                                           bool aligned) {
  if (aligned && at.whole(Src::kElements)) {
    store<Src>(p, codes, Src::kElements, true);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < at.end; ++i) {
    if (i >= at.begin) memory::store_1(p + i, codes.word[0]);
    if constexpr (Codes<Src>::kWords == 2) {
      codes.word[0] = codes.word[0] >> 8 | codes.word[1] << 24;
      codes.word[1] >>= 8;
    } else {
      codes.word[0] >>= 8;
    }
  }
}

// Where the largest magnitude of each block of the whole tensor lies: in fp32, laid out as fp32
// scales.
template <int kGranularity>
struct RangeMaxima {
  i64 rows, cols;

  __device__ __forceinline__ explicit RangeMaxima(const Args& args)
      : rows(args.rows), cols(args.cols) {}
  __device__ __forceinline__ i64 index(i64 row, i64 col) const {
    if constexpr (kGranularity == k128x128) {
      return row / 128 * padded_to_4((cols + 127) / 128) + col / 128;
    }
    if constexpr (kGranularity == k32x32) {
      return row / 32 * padded_to_4((cols + 31) / 32) + col / 32;
    }
    return 0;
  }
};

// Sets the tile of a warp of thread block `block` and returns whether it has one.
template <int kRows, int kElements>
__device__ __forceinline__ bool range_tile(const Args& args, u64 block, int warps, Tile& tile) {
  const u64 across = static_cast<u64>(args.cols + 32 * kElements - 1) / (32 * kElements);
  tile = tile_at(block * warps + threadIdx.x / 32, across);
  return (args.range_row & ~i64{kRows - 1}) + tile.row * kRows <= args.range_last_row;
}

}  // namespace quantize
