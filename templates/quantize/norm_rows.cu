// RMSNorm and row-wise quantisation in one read: 1x128, 1x32 and per row, a thread block a row.
//
//   y[r, c] = x[r, c] * rstd[r] * weight[c],   q = fp8(y * encode),   scale = 1 / encode
//
// A row of up to kTileCols columns stays in the registers of its thread block; a longer one is read
// again for every phase, mostly from L2.
//
// Phases: source (kVectors loads a thread, kThreads vectors of 4 apart: a warp's vector is 128
// columns) -> sum of squares (norm.cuh, one barrier) -> weight (from L1, where all rows find it) ->
// amax (of a warp's vector by shuffles; per row one more barrier) -> scale -> cast -> output.
//
// Ladder: bf16 to e4m3, 16384x7168, one H200, of the fastest stream of the same mix; 1x128 / 1x32 /
// per row:
//   version                                         predicted  measured            verdict
//   a row a block, 256 threads                      0.9        0.71 / 0.60 / 0.67  this file
//   the next row by cp.async while one is worked    0.95       0.68 / 0.52 / 0.75  dropped
//   on, 8 rows a block, 3 blocks
//   the same, 128 threads with 14 vectors each,     -          0.71 / 0.50 / 0.79  dropped
//   4 blocks
// About 20 instructions an element: issue slots bound it, and shared memory adds to them.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_norm_rows_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 1
#define OCTILE_DEFAULT_TILE_COLS 8192
#include "quantize/default_prologue.cuh"
#endif

namespace norm_rows {

using Src = quantize::Source<quantize::kFP32>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using E = cfg::Expression;
using quantize::Vector;

constexpr bool kPerRow = cfg::kGranularity == quantize::kPerRow;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr int kStep = cfg::kThreads * Src::kElements;  // columns of one load of the block
constexpr int kVectors = cfg::kTileCols / kStep;       // loads of a thread
constexpr int kOwned = kVectors > 8 ? 16 : kVectors > 4 ? 8 : kVectors > 2 ? 4 : kVectors;
static_assert(cfg::kTileRows == 1 && kVectors * kStep == cfg::kTileCols, "whole loads of a row");

using Patch = quantize::Patch<Src, kVectors, kVectors, kStep, 1>;
using Values = quantize::FusedInput<Patch, quantize::OnlyInput<E, 0>>;
using Weight = quantize::FusedInput<Patch, quantize::OnlyInput<E, 1>>;
using Output = quantize::RowOutput<Patch>;
using Squares = quantize::RowSquares<cfg::kThreads, kVectors>;

struct Shared {
  float squares[cfg::kThreads];
  u32 maxima[cfg::kThreads / 32];
};

__device__ __forceinline__ float encode_of(u32 magnitude) {
  return Rule::encode(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}
__device__ __forceinline__ u32 normed(u32 x, u32 weight, float rstd) {
  return __float_as_uint(E::value<0>(__uint_as_float(x), __uint_as_float(weight), rstd, 0.0f));
}

// The source, for the slow path.
struct Recomputed {
  Values values;
  Weight weight;
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

// x becomes y; its magnitudes, and whether any of it is not finite. The weight comes vector by
// vector, from L1: beside x there are no registers for all of it.
__device__ __forceinline__ bool norm(const quantize::Args& args, const Patch& patch, float rstd,
                                     Vector (&x)[kVectors], u32 (&magnitudes)[kVectors]) {
  const Weight weight(args, patch);
  if (weight.whole(patch, kVectors - 1)) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) norm_vector(x[i], weight.load_one(0, i), rstd);
  } else {
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int count = patch.elements(i);
      if (count == 0) continue;
      const Vector one =
          weight.whole(patch, i) ? weight.load_one(0, i) : weight.gather(0, i, count);
      Vector y = {{0, 0, 0, 0}};
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (j == i) y = x[j];
      }
      norm_vector(y, one, rstd);
#pragma unroll
      for (int e = 0; e < Src::kElements; ++e) {
        if (e >= count) y.word[e] = 0;  // not zeros by zeros: rstd may be infinite
      }
      Weight::put(x, i, y);
    }
  }
  if constexpr (E::kTap) quantize::write_tap(args, patch, x);
  return quantize::measure<Src>(x, magnitudes);
}

// Scales and codes of one tile, `row_encode` being the scale of the whole row where it has one.
__device__ __forceinline__ void give(const quantize::Args& args, const Patch& patch,
                                     const Vector (&y)[kVectors], const u32 (&magnitudes)[kVectors],
                                     float row_encode, float rstd, bool nonfinite) {
  const Output output(args, patch);
  const u32 lane = threadIdx.x % 32;
  if constexpr (kPerRow) {
    output.write<cfg::kTargetType>(patch, y, [&](int) { return row_encode; });
  } else if constexpr (kLong) {
    u32 tops[kOwned];
#pragma unroll
    for (int i = 0; i < kOwned; ++i) tops[i] = i < kVectors ? magnitudes[i] : 0;
    const float encode = encode_of(reduce::scatter_max<kOwned, 32>(tops, lane));
    const int owned = reduce::owned_index<kOwned, 32>(lane);
    if (static_cast<int>(lane) == reduce::owner_lane<kOwned, 32>(lane, owned)) {
      const i64 block = (patch.col - lane * Src::kElements + owned * kStep) / 128;
      const i64 blocks = (args.cols + 127) / 128;
      if (owned < kVectors && block < blocks) {
        const quantize::ScaleRuns<Rule> scales{args.scale, blocks, args.rows, args.scale_ld};
        scales.store(block, patch.row, encode);
      }
    }
    output.write<cfg::kTargetType>(patch, y, [&](int i) {
      return __shfl_sync(0xffffffffu, encode, reduce::owner_lane<kOwned, 32>(lane, i));
    });
  } else {
    const i64 blocks = (args.cols + 31) / 32;
    const quantize::ScaleRuns<Rule, cfg::kSwizzled> scales{args.scale, args.rows, blocks,
                                                           args.scale_ld};
    output.write<cfg::kTargetType>(patch, y, [&](int i) {
      const float encode = encode_of(reduce::lanes_max<8>(magnitudes[i]));
      const i64 block = (patch.col + i * kStep) / 32;
      if (lane % 8 == 0 && block < blocks) scales.store(patch.row, block, encode);
      return encode;
    });
  }
  if (nonfinite) {
    const Recomputed source{Values(args, patch), Weight(args, patch), rstd};
    quantize::count_nonfinite(args, output.mark_nonfinite<cfg::kTargetType>(patch, source));
  }
}

// Per row: amax of the block -> scale, which its first thread stores.
__device__ __forceinline__ float find_scale(const quantize::Args& args, u32 top, u32* partials) {
  top = reduce::block_max<cfg::kThreads>(top, partials);
  const float encode = encode_of(top);
  if (threadIdx.x == 0) {
    const quantize::ScaleRuns<Rule> scales{args.scale, 1, args.rows, args.scale_ld};
    scales.store(0, blockIdx.x, encode);
  }
  return encode;
}

__device__ __forceinline__ u32 largest(const u32 (&magnitudes)[kVectors]) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  return top;
}

__device__ __forceinline__ void finish_short(const quantize::Args& args, const Patch& patch,
                                             Vector (&x)[kVectors], float rstd, u32* partials) {
  u32 magnitudes[kVectors];
  const bool nonfinite = norm(args, patch, rstd, x, magnitudes);
  const float encode = kPerRow ? find_scale(args, largest(magnitudes), partials) : 1.0f;
  give(args, patch, x, magnitudes, encode, rstd, nonfinite);
}

// A row longer than the registers: tile by tile, once more for its amax where that is of the row.
__device__ __forceinline__ void finish_long(const quantize::Args& args, i64 first, float rstd,
                                            u32* partials) {
  const i64 row = blockIdx.x;
  Vector x[kVectors];
  u32 magnitudes[kVectors];
  float encode = 1.0f;
  if constexpr (kPerRow) {
    u32 top = 0;
#pragma unroll 1
    for (i64 col = 0; col < args.cols; col += cfg::kTileCols) {
      const Patch patch(args, row, first + col);
      Values(args, patch).load(patch, x);
      norm(args, patch, rstd, x, magnitudes);
      top = reduce::max(top, largest(magnitudes));
    }
    encode = find_scale(args, top, partials);
  }
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += cfg::kTileCols) {
    const Patch patch(args, row, first + col);
    Values(args, patch).load(patch, x);
    const bool nonfinite = norm(args, patch, rstd, x, magnitudes);
    give(args, patch, x, magnitudes, encode, rstd, nonfinite);
  }
}

}  // namespace norm_rows

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace norm_rows;
  if (quantize::skipped(args)) return;
  __shared__ Shared shared;
  const i64 row = blockIdx.x;
  const i64 first = static_cast<i64>(threadIdx.x) * Src::kElements;
  Vector x[kVectors];
  Squares squares;
#pragma unroll 1
  for (i64 col = 0; col < args.cols; col += cfg::kTileCols) {
    const Patch patch(args, row, first + col);
    Values(args, patch).load(patch, x);
    squares.add(x);
  }
  const float total = squares.total(shared.squares);
  const float rstd =
      quantize::reciprocal_rms(total, args.cols, __uint_as_float(cfg::kNormEpsilonBits));
  if (threadIdx.x == 0) memory::store_4(args.rstd + row, __float_as_uint(rstd));
  if (args.cols <= cfg::kTileCols) {
    finish_short(args, Patch(args, row, first), x, rstd, shared.maxima);
  } else {
    finish_long(args, first, rstd, shared.maxima);
  }
}
