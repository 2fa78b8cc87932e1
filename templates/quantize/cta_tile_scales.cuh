// The scales of cta_tile.cu: combining the maxima of a tile, and storing the scales. Scales of
// square blocks, of strips along rows and along columns, and of lines whose maxima another kernel
// found.
#pragma once
#ifndef OCTILE_EMITTED
#include "quantize/cta_tile_shape.cuh"
#endif

namespace cta_tile {

// ---- 1x32 scales that are stored by whole sectors (ordered_scales.cuh) --------------------------

static_assert(!cfg::kOrdersScales ||
                  (cfg::kGranularity == quantize::k1x32 && Rule::kStepBytes == 1 &&
                   cfg::kTileRows == 128 && cfg::kTileCols == 128),
              "a tile has a word of each of 128 runs");
template <typename A>
__device__ __forceinline__ quantize::OrderedScales row_scales(const A& args) {
  return {args.scale, args.rows, blocks_of(args.cols), args.scale_ld};
}
template <typename A>
__device__ __forceinline__ quantize::OrderedScales column_scales(const A& args) {
  return {args.scale_transposed, args.cols, blocks_of(args.rows), args.scale_ld_transposed};
}

// Stores the words of the rows and of the columns, each by one warp. Call it after a barrier.
template <typename A>
__device__ __forceinline__ void put_words(const A& args, const Place& at, const Words& of_rows,
                                          const Words& of_columns, i64 row0, i64 col0) {
  if constexpr (cfg::kOrdersScales) {
    const auto rows = row_scales(args), columns = column_scales(args);
    if (cfg::kRowwise && at.warp == 0 && rows.holds(row0, col0 / kBlock)) {
      rows.put(row0, col0 / kBlock, of_rows.vector, at.lane);
    }
    if (at.warp == 1 && columns.holds(col0, row0 / kBlock)) {
      columns.put(col0, row0 / kBlock, of_columns.vector, at.lane);
    }
  }
}

// ---- 128x128, 32x32 -----------------------------------------------------------------------------

// Leaves the warp's maximum of each block it touches in shared memory.
template <typename Memory>
__device__ __forceinline__ void share_squares(Memory& shared, const Place& at,
                                              const u32 (&magnitudes)[kVectors]) {
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  constexpr int kAlong = kBlock / Src::kElements;  // lanes of a block along a row
  if constexpr (kAlong >= kLanes) {
    top = __reduce_max_sync(0xffffffffu, top);
  } else {
    top = reduce::lanes_max<kAlong>(top);
    if constexpr (kLanes < 32) top = reduce::lanes_max<32 / kLanes, kLanes>(top);
  }
  if (at.lane < kLanes && at.lane % kAlong == 0) {
    shared.maxima.squares[at.warp][at.block_across] = top;
  }
}

// Returns the encode scale of the thread's block. Call it after a barrier.
template <typename Memory>
__device__ __forceinline__ float square_encode_scale(const Memory& shared, const Place& at) {
  constexpr int kBlockWarps = kInterleaved ? kWarps : kWarps / kBlocksDown;  // that share a block
  const int first = kInterleaved ? 0 : at.block_down * kBlockWarps;
  u32 top = 0;
#pragma unroll
  for (int w = 0; w < kBlockWarps; ++w) {
    top = reduce::max(top, shared.maxima.squares[first + w][at.block_across]);
  }
  return encode_scale_of(top);
}

// Stores the scale of a block, by one of its threads.
__device__ __forceinline__ void store_square(const View& args, const Patch& patch, const Place& at,
                                             float encode_scale) {
  const bool writer = at.row % kBlock == 0 && (kSharers == 1 ? at.column : patch.col) % kBlock == 0;
  if (writer && patch.row < quantize::end_row(args) && patch.col < args.cols) {
    const i64 down = blocks_of(quantize::scale_rows(args)), across = blocks_of(args.cols);
    const i64 i = (patch.row - quantize::scale_origin(args)) / kBlock, j = patch.col / kBlock;
    if constexpr (cfg::kRowwise) {
      Runs{args.scale, down, across, args.scale_ld}.store(i, j, encode_scale);
    }
    if constexpr (cfg::kTransposed) {
      Runs{args.scale_transposed, across, down, args.scale_ld_transposed}.store(j, i, encode_scale);
    }
  }
}

// ---- 1x128, 1x32, along the rows ----------------------------------------------------------------

// The scales of the patch's rows. 1x128: each lane of a block derives those of the rows it owns and
// hands them to the others by shuffles. 1x32: every lane derives all of them, because exponents
// cost little.
struct RowStrips {
  static constexpr int kAlong = kBlock / Src::kElements;  // lanes of a block
  static constexpr int kAcross = kLanes;                  // lanes of the tile's 128 columns
  float kept[kShort ? kVectors : 1];                      // encode scales

  // Takes the maxima of the rows over the lane's own elements. Stores the scales, or keeps them in
  // `words` if they are stored by sectors.
  __device__ __forceinline__ void find(const View& args, const Patch& patch, const Place& at,
                                       u32 (&magnitudes)[kVectors], Words& words) {
    const u32 lane = static_cast<u32>(at.lane);
    const i64 block = patch.col / kBlock, blocks = blocks_of(args.cols);
    const i64 rows = quantize::scale_rows(args);
    const i64 first = patch.row - quantize::scale_origin(args);
    if constexpr (kShort) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        kept[i] = encode_scale_of(reduce::lanes_max<kAlong>(magnitudes[i]));
      }
      if (lane % kAlong != 0 || block >= blocks) return;
      if constexpr (cfg::kOrdersScales) {
        if (row_scales(args).holds(patch.row - at.row, (patch.col - at.column) / kBlock)) {
          keep_words(at, words);
          return;
        }
      }
      Runs{args.scale, rows, blocks, args.scale_ld}.store_down(first, block, patch.rows, kept);
    } else {
      const Runs scales{args.scale, blocks, rows, args.scale_ld};
      const float encode_scale =
          encode_scale_of(reduce::scatter_max<kVectors, kAcross>(magnitudes, lane));
      const int owned = reduce::owned_index<kVectors, kAcross>(lane);
      const int owner = reduce::owner_lane<kVectors, kAcross>(lane, owned);
      const bool first_sharer = kSharers == 1 || patch.col % kBlock < cfg::kTileCols;
      if (static_cast<int>(lane) == owner && owned < patch.rows && block < blocks && first_sharer) {
        scales.store(block, first + owned, encode_scale);
      }
      kept[0] = encode_scale;
    }
  }

  // Returns row i's encode scale. All lanes call it for every i.
  __device__ __forceinline__ float encode_scale(u32 lane, int i) const {
    if constexpr (kShort) {
      return kept[i];
    } else {
      const int owner = reduce::owner_lane<kVectors, kAcross>(lane, i);
      return __shfl_sync(0xffffffffu, kept[0], owner);
    }
  }

 private:
  __device__ __forceinline__ void keep_words(const Place& at, Words& words) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      words.scale[4 * (at.row + i) + at.block_across] =
          static_cast<u8>(Rule::decode_exponent(kept[i]));
    }
  }
};

// ---- 1x128, 1x32, along the columns -------------------------------------------------------------

// Returns the thread's maxima of its columns; their signs mean nothing.
__device__ __forceinline__ Src::Tops column_maxima(const Src::Held (&x)[kVectors]) {
  Src::Tops top = quantize::tops_of<Src>(x[0]);
#pragma unroll
  for (int i = 1; i < kVectors; ++i) quantize::raise_tops<Src>(top, x[i]);
  return top;
}

// Leaves the maxima of the warp's columns in shared memory. Maxima that are words are left as each
// thread has them: shuffling them would take longer.
template <typename Memory>
__device__ __forceinline__ void share_columns(Memory& shared, const Place& at, Src::Tops top) {
  if constexpr (kWordTops) {
    shared.maxima.columns[at.patch_row][at.lane % kLanes] = quantize::magnitudes_of<Src>(top);
  } else {
    top = quantize::over_rows<Src, kLanes>(top);
    if (at.lane < kLanes) shared.maxima.columns[at.warp][at.lane] = top;
  }
}

// Derives the scales of one column for each thread, stores them, and leaves them in
// `shared.encode_scales`. Call it after a barrier. `row0`: the tile's first row in its group.
template <typename Memory>
__device__ __forceinline__ void find_columns(const View& args, Memory& shared, Words& words,
                                             i64 row0, i64 col0) {
  const int column = static_cast<int>(threadIdx.x);
  if (column >= cfg::kTileCols) return;
  const i64 before = quantize::start_column(args) / kBlock;
  const i64 blocks = before + blocks_of(quantize::end_row(args) - quantize::first_row(args));
  const i64 col = col0 + column, first = before + row0 / kBlock;
  const Runs scales = kShort
                          ? Runs{args.scale_transposed, args.cols, blocks, args.scale_ld_transposed}
                          : Runs{args.scale_transposed, quantize::is_last(args) ? blocks : 0,
                                 args.cols, args.scale_ld_transposed};
  float encode_scale[kBlocksDown];
#pragma unroll
  for (int b = 0; b < kBlocksDown; ++b) {
    encode_scale[b] = encode_scale_of(
        quantize::column_top<Src, kBlockParts>(shared.maxima.columns + b * kBlockParts, column));
    shared.encode_scales[b][column] = encode_scale[b];
  }
  if constexpr (cfg::kOrdersScales) {
    if (column_scales(args).holds(col0, first)) {
      u32 word = 0;
#pragma unroll
      for (int b = 0; b < kBlocksDown; ++b) {
        word |= Rule::decode_exponent(encode_scale[b]) << 8 * b;
      }
      words.of_run[column] = word;
      return;
    }
  }
  if (col >= args.cols) return;
  const int count = quantize::clamp_count(blocks - first, kBlocksDown);
  if constexpr (kShort) {
    scales.store_along(col, first, count, encode_scale);
  } else {
    scales.store_down(first, col, count, encode_scale);
  }
}

// ---- per row ------------------------------------------------------------------------------------

// Derives the scales of one line for each thread, or of two, from the maxima that line_amax.cu
// found. The first tiles along rows and columns store them. A barrier must follow.
__device__ __forceinline__ void find_lines(const quantize::Args& args, LineScales& lines, i64 row0,
                                           i64 col0) {
#pragma unroll
  for (int first = 0; first < kLines; first += cfg::kThreads) {
    const int line = first + static_cast<int>(threadIdx.x);
    if (kLines % cfg::kThreads != 0 && line >= kLines) break;
    const bool of_row = line < cfg::kTileRows;
    const i64 at = of_row ? row0 + line : col0 + line - cfg::kTileRows;
    const i64 count = of_row ? args.rows : args.cols;
    float encode_scale = 1.0f;
    if (at < count) {
      encode_scale =
          encode_scale_of(memory::glance_4(args.maxima + (of_row ? at : args.rows + at)));
      if constexpr (cfg::kRowwise) {
        if (of_row && col0 == 0) {
          Runs{args.scale, 1, args.rows, args.scale_ld}.store(0, at, encode_scale);
        }
      }
      if constexpr (cfg::kTransposed) {
        if (!of_row && row0 == 0) {
          const Runs scales{args.scale_transposed, 1, args.cols, args.scale_ld_transposed};
          scales.store(0, at, encode_scale);
        }
      }
    }
    lines.of[line] = encode_scale;
  }
}

}  // namespace cta_tile
