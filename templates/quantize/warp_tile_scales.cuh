// The scales and codes of warp_tile.cu: how the maxima of a step meet, and who stores the scales.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/warp_tile_shape.cuh"
#endif

namespace warp_tile {

// Returns the maximum of a piece from those of its vectors.
__device__ __forceinline__ u32 of_piece(const u32 (&magnitudes)[kVectors], int piece) {
  u32 top = magnitudes[piece * kTouching];
  if constexpr (kTouching == 2) top = reduce::max(top, magnitudes[2 * piece + 1]);
  return top;
}

// 1x128: which scales a lane derives and where they are stored. The lanes of a block share out its
// pieces; if there are more lanes than pieces, several derive the same scale. Down a tile the
// scales are neighbours in one run. If rows stream two a step and scales are words of their own,
// lanes that derive the same scale keep that of a different step each. The scales of 8 rows, a
// sector, are then stored together: storing 8 bytes takes L2 as long.
struct LongOwner {
  using Runs = quantize::ScaleRuns<Rule>;
  static constexpr int kCopies = kLongLanes / kOwned;
  static constexpr bool kGathers =
      cfg::kSideBySide && cfg::kStepRows <= 2 && Rule::kStepBytes == 4 && !Rule::kUe8m0x4;
  static constexpr int kRowsOfSector = 8;
  static constexpr int kStepsOfSector =
      kRowsOfSector / cfg::kStepRows < kCopies ? kRowsOfSector / cfg::kStepRows : kCopies;
  static constexpr int kSteps = kGathers && kStepsOfSector > 1 ? kStepsOfSector : 1;

  u32 lane = threadIdx.x % 32;
  int piece = reduce::owned_index<kOwned, kLongLanes>(lane);
  int copy = static_cast<int>(lane) % kCopies;
  char* place;  // place of the lane's next scale
  bool stores;
  int step = 0;  // among the steps whose scales are stored together
  float kept = 1.0f;

  __device__ __forceinline__ LongOwner(const View& args, const Patch& patch) {
    const Runs runs = runs_of(args);
    const i64 run = run_of(patch), first = first_of(args, patch) + copy % kSteps * cfg::kStepRows;
    place = static_cast<char*>(args.scale) +
            runs.index(run, first) * (Rule::kUe8m0x4 ? 1 : Rule::kStepBytes);
    stores = copy < kSteps &&
             run < (cfg::kOfHalves && piece % kPieces == 0 ? runs.outer / 2 : runs.outer);
  }
  // Takes the scale that the lane derived for the patch. `last`: the tile's last patch.
  __device__ __forceinline__ void store(const View& args, const Patch& patch, float encode_scale,
                                        bool last) {
    if (kSteps == 1 || copy == step) kept = encode_scale;
    if (++step < kSteps && !last) return;
    const int rows_before =
        (step - 1 - copy) * cfg::kStepRows;  // from the lane's row to the patch's
    // No padding follows the rows before the tensor's last patch.
    if (!stores || rows_before < 0) {
    } else if (!Rule::kUe8m0x4 && patch.row + cfg::kStepRows < args.rows) {
      Rule::store(place, 0, kept);
    } else if (rows_before > 0 || piece / kPieces < patch.rows) {
      Patch here = patch;
      here.col = hide_from_optimizer(here.col);
      runs_of(args).store(run_of(here), first_of(args, here) - rows_before, kept);
    }
    place += step * cfg::kStepRows * Rule::kStepBytes;
    step = 0;
  }

 private:
  __device__ __forceinline__ Runs runs_of(const View& args) const {
    return {args.scale, (args.cols + kLongBlock - 1) / kLongBlock, quantize::scale_rows(args),
            args.scale_ld};
  }
  // The block's run; the owner's own column may lie beyond the last column.
  __device__ __forceinline__ i64 run_of(const Patch& patch) const {
    return (patch.col + patch.offset(piece % kPieces * kTouching)) / kLongBlock;
  }
  __device__ __forceinline__ i64 first_of(const View& args, const Patch& patch) const {
    return patch.row + piece / kPieces - quantize::scale_origin(args);
  }
};

// 1x128: derives and stores the scales, and writes the codes.
__device__ __forceinline__ void quantize_long(const View& args, LongOwner& owner,
                                              const Patch& patch, const Output& output,
                                              const Vector (&x)[kVectors],
                                              const u32 (&magnitudes)[kVectors], bool last) {
  u32 tops[kOwned];
#pragma unroll
  for (int i = 0; i < kOwned; ++i) tops[i] = of_piece(magnitudes, i);
  const float encode_scale =
      encode_scale_of(reduce::scatter_max<kOwned, kLongLanes>(tops, owner.lane));
  owner.store(args, patch, encode_scale, last);
  float given = 1.0f;
  output.write<cfg::kTargetType>(patch, x, [&](int i) {
    if (i % kTouching != 0) return given;  // the two vectors of a piece share a scale
    const int lane = reduce::owner_lane<kOwned, kLongLanes>(owner.lane, i / kTouching);
    given = __shfl_sync(0xffffffffu, encode_scale, lane);
    return given;
  });
}

// 1x32: derives and stores the scales, and writes the codes. Every lane derives those of its own
// pieces, because exponents cost little.
__device__ __forceinline__ void quantize_short(const View& args, const Patch& patch,
                                               const Output& output, const Vector (&x)[kVectors],
                                               const u32 (&magnitudes)[kVectors]) {
  const i64 blocks = (args.cols + kBlock - 1) / kBlock;
  const quantize::ScaleRuns<Rule, cfg::kSwizzled> scales{args.scale, quantize::scale_rows(args),
                                                         blocks, args.scale_ld};
  const i64 first = patch.row - quantize::scale_origin(args);
  float encode_scale[kOwned];
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    encode_scale[i] = encode_scale_of(reduce::lanes_max<kLanes>(of_piece(magnitudes, i)));
  }
  // If a row has as many pieces as a block has lanes, each lane stores one scale, so that 32 bytes
  // are stored at once.
  if constexpr (cfg::kStepRows == 1 && kPieces == kLanes && kTouching == 1) {
    const int piece = static_cast<int>(threadIdx.x) % kLanes;
    const i64 block = (patch.col + patch.offset(piece)) / kBlock;
    if (block < blocks && patch.rows > 0) {
      scales.store(first, block, quantize::picked(encode_scale, piece));
    }
  } else if (threadIdx.x % kLanes == 0) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      float of_rows[cfg::kStepRows];
#pragma unroll
      for (int row = 0; row < cfg::kStepRows; ++row)
        of_rows[row] = encode_scale[row * kPieces + piece];
      const i64 block = (patch.col + patch.offset(piece * kTouching)) / kBlock;
      const i64 end = cfg::kOfHalves && piece == 0 ? blocks / 2 : blocks;
      if (block < end) scales.store_down(first, block, patch.rows, of_rows);
    }
  }
  output.write<cfg::kTargetType>(patch, x, [&](int i) { return encode_scale[i / kTouching]; });
}

// Does amax, scale, cast and output of a patch.
__device__ __forceinline__ void give(const View& args, const Patch& patch, const Input& input,
                                     const Output& output, LongOwner& owner, bool first_tile,
                                     const quantize::Given& given, u32 known, Vector (&x)[kVectors],
                                     bool last) {
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);
  if constexpr (kOneScale) {
    const float encode_scale = cfg::kDelayed ? given.encode_scale : encode_scale_of(known);
    if constexpr (cfg::kDelayed) quantize::record_amax<Src>(args, given, magnitudes);
    if (first_tile && threadIdx.x % 32 == 0) {
      Rule::store(args.scale, 0, encode_scale);
      if (!cfg::kDelayed) quantize::record_scale<Src>(args, known, encode_scale);
    }
    output.write<cfg::kTargetType>(patch, x, [&](int) { return encode_scale; });
  } else if constexpr (kLong) {
    quantize_long(args, owner, patch, output, x, magnitudes, last);
  } else {
    quantize_short(args, patch, output, x, magnitudes);
  }
  if (nonfinite) {
    quantize::count_nonfinite(args, output.mark_nonfinite<cfg::kTargetType>(patch, input));
  }
}

}  // namespace warp_tile
