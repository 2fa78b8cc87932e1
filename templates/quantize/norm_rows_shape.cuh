// The parts of norm_rows.cu: the elements that each thread holds, a thread block's shared memory,
// and how values are normed.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/default_prologue.cuh"
#endif

namespace norm_rows {

using Src = quantize::Computed;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using E = cfg::Expression;
using quantize::Vector;

constexpr bool kPerRow = cfg::kGranularity == quantize::kPerRow;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr int kBlock = kLong ? 128 : 32;        // elements of a scale, unless a row has one
constexpr int kPieceCols = 2 * Src::kElements;  // columns of two vectors that touch
constexpr int kLanes = kBlock / kPieceCols;     // lanes that share a scale
constexpr int kLongLanes = 128 / kPieceCols;
constexpr int kStep = cfg::kThreads * kPieceCols;  // columns of a piece of the block
constexpr int kPieces = cfg::kTileCols / kStep;    // pieces of a thread
constexpr int kVectors = 2 * kPieces;
static_assert(kPieces * kStep == cfg::kTileCols, "whole pieces of a row");

// A row's pieces in the registers, kCount of each thread. kOneRowAfterAnother: the rows of a tile
// come in their order.
template <int kCount, bool kOneRowAfterAnother>
struct Pieces {
  static constexpr bool kInOrder = kOneRowAfterAnother;
  static constexpr int kPieces = kCount;
  static constexpr int kVectors = 2 * kCount;
  static constexpr int kOwned = kCount > 4 ? 8 : kCount > 2 ? 4 : kCount;
  using Patch = quantize::Patch<Src, kVectors, kVectors, kStep, 1, 2>;
  using Values = quantize::FusedInput<Patch, quantize::OnlyInput<E, 0>>;
  using Weight = quantize::FusedInput<Patch, quantize::OnlyInput<E, 1>>;
  using Output = quantize::RowOutput<Patch>;
  using X = Vector[kVectors];
};
using Row = Pieces<kPieces, true>;
using One = Pieces<1, false>;

constexpr int kLoads = Row::Values::kRowLoads;  // loads of a piece
constexpr int kStepBytes = kStep * Row::Values::In::kElementBytes;
using Raw = Vector[kPieces][1][kLoads];  // one input's pieces of a thread, as memory holds them

constexpr bool kOneRow = cfg::kTileRows == 1;  // whether a thread block has one row
// Registers hold a thread's weights beside x while the sum of the row is on its way.
constexpr bool kHoldsWeight = kOneRow && kPieces <= 4;

struct Shared {
  // The raw pieces of the next row, if a block has a next row and they fit into static shared
  // memory with the rest. Each thread reads only its own copies.
  static constexpr int kWords = kPieces * kLoads * cfg::kThreads;
  static constexpr bool kAhead = cfg::kTileRows > 1 && kWords * sizeof(Vector) <= 40 * 1024;
  Vector next[kAhead ? kWords : 1];
  float squares[2][cfg::kThreads * 2];  // in turn: a barrier lies between this row's and the last's
  u32 maxima[cfg::kThreads / 32];
};

// ---- norming ------------------------------------------------------------------------------------

__device__ __forceinline__ u32 normed(u32 x, u32 weight, float rstd) {
  return __float_as_uint(
      E::value<0>(__uint_as_float(x), __uint_as_float(weight), rstd, 0.0f, 0.0f));
}

// The source for the slow path, which reads its inputs again.
template <typename P>
struct Recomputed {
  typename P::Values values;
  typename P::Weight weight;
  float rstd;
  __device__ __forceinline__ u32 raw(int row, int g, int element) const {
    return normed(values.raw(row, g, element), weight.raw(row, g, element), rstd);
  }
};

__device__ __forceinline__ void norm_vector(Vector& x, const Vector& weight, float rstd) {
#pragma unroll
  for (int e = 0; e < Src::kElements; ++e) {
    x.word[e] = normed(x.word[e], weight.word[e], rstd);
  }
}

// Sets the values of raw pieces.
__device__ __forceinline__ void values_of(const Raw& raw, Row::X& values) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    Row::Values::compute_piece<0>(raw[i], 0.0f, values[2 * i], values[2 * i + 1]);
  }
}

// Turns x into y by weights that are held. Beyond the thread's `pieces` x is zero and stays so
// without a multiplication, because rstd may be infinite.
__device__ __forceinline__ void norm_held(const quantize::Args& args, const Row::Patch& patch,
                                          const Raw& raw_weight, int pieces, float rstd,
                                          Row::X& x) {
  Row::X weight;
  values_of(raw_weight, weight);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (i / 2 < pieces) norm_vector(x[i], weight[i], rstd);
  }
  if constexpr (E::kTap) quantize::write_tap(args, patch, x);
}

// Norms pieces that are all whole. The weight comes from L1, four pieces at a time: beside x the
// registers do not suffice for more, and single loads would each be waited for.
template <typename P>
__device__ __forceinline__ void norm_whole(const typename P::Weight& weight, float rstd,
                                           typename P::X& x) {
  constexpr int kTogether = 4;
#pragma unroll
  for (int first = 0; first < P::kPieces; first += kTogether) {
    Vector raw[kTogether][1][kLoads];
#pragma unroll
    for (int i = 0; i < kTogether * kLoads && first + i / kLoads < P::kPieces; ++i) {
      const char* const p = weight.at(0, 0, weight.col + (first + i / kLoads) * kStep);
      raw[i / kLoads][0][i % kLoads] = memory::load_16(p + i % kLoads * sizeof(Vector));
    }
#pragma unroll
    for (int i = 0; i < kTogether && first + i < P::kPieces; ++i) {
      Vector both[2];
      P::Weight::template compute_piece<0>(raw[i], 0.0f, both[0], both[1]);
      norm_vector(x[2 * (first + i)], both[0], rstd);
      norm_vector(x[2 * (first + i) + 1], both[1], rstd);
    }
  }
}

// Turns x into y. Beyond the last column x is zero and stays so without a multiplication, because
// rstd may be infinite. kAligned: the weight is known to be aligned.
template <typename P, bool kAligned>
__device__ __forceinline__ void norm(const quantize::Args& args, const typename P::Patch& patch,
                                     float rstd, typename P::X& x) {
  const typename P::Weight weight(args, patch);
  if ((kAligned || weight.aligned) && patch.whole()) {
    norm_whole<P>(weight, rstd, x);
  } else {
#pragma unroll
    for (int i = 0; i < P::kPieces; ++i) {
      if ((kAligned || weight.aligned) && patch.whole(2 * i + 1)) {
        Vector both[2];
        weight.load_piece(0, i, both);
        norm_vector(x[2 * i], both[0], rstd);
        norm_vector(x[2 * i + 1], both[1], rstd);
      } else if constexpr (P::kPieces == 1) {
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          const int count = patch.elements(g);
          norm_vector(x[g], weight.gather(0, g, count), rstd);
#pragma unroll
          for (int e = 0; e < Src::kElements; ++e) {
            if (e >= count) x[g].word[e] = 0;
          }
        }
      }
    }
  }
  if constexpr (E::kTap) quantize::write_tap(args, patch, x);
}

// Returns 1 / rms of the row, which one thread of the block stores.
__device__ __forceinline__ float store_rstd(const quantize::Args& args, i64 row, float squares) {
  const float rstd =
      quantize::reciprocal_rms(squares, args.cols, __uint_as_float(cfg::kNormEpsilonBits));
  if (threadIdx.x == 0) memory::store_4(args.rstd + row, __float_as_uint(rstd));
  return rstd;
}

}  // namespace norm_rows
