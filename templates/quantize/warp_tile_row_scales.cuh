// The scales and codes of warp_tile.cu if the scales of a row lie together (scales=rows), in place
// of warp_tile_scales.cuh: 1x128 blocks alone.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/warp_tile_shape.cuh"
#endif

namespace warp_tile {

static_assert(kLong, "1x128 scales lie by rows");

// The scales that a lane derives and stores. The lanes of a block share out its pieces; if there
// are more lanes than pieces, several derive the same scale and the first of them stores it.
struct LongOwner {
  static constexpr int kCopies = kLongLanes / kOwned;
  u32 lane = threadIdx.x % 32;
  int piece = reduce::owned_index<kOwned, kLongLanes>(lane);
  bool stores = static_cast<int>(lane) % kCopies == 0;

  __device__ __forceinline__ LongOwner(const View&, const Patch&) {}
  __device__ __forceinline__ void store(const View& args, const Patch& patch,
                                        float encode_scale) const {
    const int row = piece / kPieces, along = piece % kPieces;
    // The owner's own column may lie beyond the last column.
    const i64 block = (patch.col + patch.offset(along * kTouching)) / kLongBlock;
    const i64 blocks = (args.cols + kLongBlock - 1) / kLongBlock;
    const i64 end = cfg::kOfHalves && along == 0 ? blocks / 2 : blocks;
    if (!stores || row >= patch.rows || block >= end) return;
    const quantize::ScaleRuns<Rule> scales{args.scale, args.rows, blocks, args.scale_ld};
    scales.store(patch.row + row, block, encode_scale);
  }
};

// Does amax, scale, cast and output of a patch.
__device__ __forceinline__ void give(const View& args, const Patch& patch, const Input& input,
                                     const Output& output, LongOwner& owner, bool,
                                     const quantize::Given&, u32, Vector (&x)[kVectors], bool) {
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);
  u32 tops[kOwned];
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    tops[i] = magnitudes[i * kTouching];
    if constexpr (kTouching == 2) tops[i] = reduce::max(tops[i], magnitudes[2 * i + 1]);
  }
  const float encode_scale =
      encode_scale_of(reduce::scatter_max<kOwned, kLongLanes>(tops, owner.lane));
  owner.store(args, patch, encode_scale);
  float given = 1.0f;
  output.write<cfg::kTargetType>(patch, x, [&](int i) {
    if (i % kTouching != 0) return given;  // the two vectors of a piece share a scale
    const int lane = reduce::owner_lane<kOwned, kLongLanes>(owner.lane, i / kTouching);
    given = __shfl_sync(0xffffffffu, encode_scale, lane);
    return given;
  });
  if (nonfinite) {
    quantize::count_nonfinite(args, output.mark_nonfinite<cfg::kTargetType>(patch, input));
  }
}

}  // namespace warp_tile
