// The scales and codes of norm_rows.cu: how the maxima of a row meet, and who stores its scales.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/norm_rows_shape.cuh"
#endif

namespace norm_rows {

__device__ __forceinline__ float encode_scale_of(u32 magnitude) {
  return Rule::encode_scale(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}

// Returns the maximum of a piece from those of its vectors.
template <typename P>
__device__ __forceinline__ u32 of_piece(const u32 (&magnitudes)[P::kVectors], int piece) {
  return reduce::max(magnitudes[2 * piece], magnitudes[2 * piece + 1]);
}
// Returns the maximum of all vectors.
template <typename P>
__device__ __forceinline__ u32 largest(const u32 (&magnitudes)[P::kVectors]) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < P::kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  return top;
}

// 1x128: which of its pieces' scales a lane derives, and where they are stored. The scales of
// consecutive rows are neighbours in one run.
template <typename P>
struct LongOwner {
  u32 lane = threadIdx.x % 32;
  int piece = reduce::owned_index<P::kOwned, kLongLanes>(lane);
  int block;
  char* place;
  bool stores;
  u32 before;  // the scale of the row before this one, if scales are stored in pairs

  __device__ __forceinline__ LongOwner(const quantize::Args& args, const typename P::Patch& patch) {
    // The block's first column; the lane's own may lie beyond the last column.
    const i64 first = patch.col - lane % kLongLanes * kPieceCols + piece * kStep;
    block = static_cast<int>(first / 128);
    place = static_cast<char*>(args.scale) +
            runs_of(args).index(block, patch.row) * (Rule::kUe8m0x4 ? 1 : Rule::kStepBytes);
    stores = static_cast<int>(lane) == reduce::owner_lane<P::kOwned, kLongLanes>(lane, piece) &&
             piece < P::kPieces && first < args.cols;
  }
  // Goes on to the next row.
  __device__ __forceinline__ void advance() { place += Rule::kStepBytes; }
  __device__ __forceinline__ void store(const quantize::Args& args, i64 row, float encode_scale) {
    if (!stores) return;
    const bool last = row + 1 >= args.rows;
    if constexpr (kInPairs) {
      if (row % 2 == 0 && !last) {
        before = Rule::word(encode_scale);
        return;
      }
      if (row % 2 != 0) {
        const u64 bits = reinterpret_cast<u64>(args.scale) | static_cast<u64>(args.scale_ld) * 4;
        if (!last && bits % 8 == 0)
          return memory::store_8(place - 4, before, Rule::word(encode_scale));
        memory::store_4(place - 4, before);
      }
    }
    if (!Rule::kUe8m0x4 && !last) {
      Rule::store(place, 0, encode_scale);
    } else {  // padding may follow
      runs_of(args).store(block, row, encode_scale);
    }
  }

 private:
  // fp32 scales of neighbouring rows are neighbours in their run.
  static constexpr bool kInPairs =
      Rule::kStepBytes == 4 && !Rule::kUe8m0x4 && cfg::kTileRows % 2 == 0 && P::kInOrder;
  static __device__ __forceinline__ quantize::ScaleRuns<Rule> runs_of(const quantize::Args& args) {
    return {args.scale, (args.cols + 127) / 128, args.rows, args.scale_ld};
  }
};

// Derives and stores the scales, unless the row has one (`row_encode_scale`), and writes the codes.
template <typename P>
__device__ __forceinline__ void give(const quantize::Args& args, const typename P::Patch& patch,
                                     LongOwner<P>& owner, const typename P::X& y,
                                     const u32 (&magnitudes)[P::kVectors], float row_encode_scale,
                                     float rstd, bool nonfinite) {
  const typename P::Output output(args, patch);
  if constexpr (kPerRow) {
    output.template write<cfg::kTargetType>(patch, y, [&](int) { return row_encode_scale; });
  } else if constexpr (kLong) {
    u32 tops[P::kOwned];
#pragma unroll
    for (int i = 0; i < P::kOwned; ++i) tops[i] = i < P::kPieces ? of_piece<P>(magnitudes, i) : 0;
    const float encode_scale =
        encode_scale_of(reduce::scatter_max<P::kOwned, kLongLanes>(tops, owner.lane));
    owner.store(args, patch.row, encode_scale);
    float given = 1.0f;
    output.template write<cfg::kTargetType>(patch, y, [&](int i) {
      if (i % 2 != 0) return given;  // the two vectors of a piece share a scale
      const int lane = reduce::owner_lane<P::kOwned, kLongLanes>(owner.lane, i / 2);
      given = __shfl_sync(0xffffffffu, encode_scale, lane);
      return given;
    });
  } else {
    const i64 blocks = (args.cols + 31) / 32;
    const quantize::ScaleRuns<Rule, cfg::kSwizzled> scales{args.scale, args.rows, blocks,
                                                           args.scale_ld};
    float encode_scale[P::kPieces];
#pragma unroll
    for (int i = 0; i < P::kPieces; ++i) {
      encode_scale[i] = encode_scale_of(reduce::lanes_max<kLanes>(of_piece<P>(magnitudes, i)));
    }
    if (owner.lane % kLanes == 0) {
      scales.template store_apart<kStep / 32>(patch.row, patch.col / 32, encode_scale);
    }
    output.template write<cfg::kTargetType>(patch, y, [&](int i) { return encode_scale[i / 2]; });
  }
  if (nonfinite) {
    using Again = Recomputed<P>;
    const Again source{typename P::Values(args, patch), typename P::Weight(args, patch), rstd};
    quantize::count_nonfinite(args,
                              output.template mark_nonfinite<cfg::kTargetType>(patch, source));
  }
}

// Returns the one encode scale of a row. The block's first thread stores it.
__device__ __forceinline__ float find_scale(const quantize::Args& args, i64 row, u32 top,
                                            u32* partials) {
  top = reduce::block_max<cfg::kThreads>(top, partials);
  const float encode_scale = encode_scale_of(top);
  if (threadIdx.x == 0) {
    const quantize::ScaleRuns<Rule> scales{args.scale, 1, args.rows, args.scale_ld};
    scales.store(0, row, encode_scale);
  }
  return encode_scale;
}

}  // namespace norm_rows
