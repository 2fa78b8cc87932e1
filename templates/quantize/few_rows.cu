// Quantisation of few rows by thread blocks: 1x128 with a transposed copy, and 128x128. A thread
// block has 128 rows x 128 columns of the tensor, as in cta_tile.cu, but holds only kTileRows (16,
// 32 or 64) of its rows at once. A tensor with no more rows is read once. In a taller one the
// thread block finds the maxima kTileRows rows at a time and then reads x again.
//
// Its results and its threads' elements are those of cta_tile.cu. It differs in this:
//   - A tensor of few rows has no threads for the rows that it lacks.
//   - A column's staged codes are kTileRows bytes (ColumnCodes).
// docs/experiments/quantize.md lists what was tried and measured.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_few_rows_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 64
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/cta_tile_scales.cuh"
#endif

namespace few_rows {

using namespace cta_tile;

static_assert(kFewRows && (kStrips || kSquares) && !kShort && cfg::kTileCols == kBlock &&
                  cfg::kGroupWalk == 0 && !cfg::kBiasGradient && !Src::kMadeAnew,
              "1x128 or 128x128 of a tensor of values");
constexpr int kVectors = cta_tile::kVectors;
constexpr bool kColumnStrips = kStrips && cfg::kTransposed;

// The largest magnitudes of the rows that a thread has held so far.
struct Tops {
  u32 square;
  Src::Tops columns;
};

// Loads a patch. Finds the maxima of its vectors, and returns whether there were infinities or
// NaNs, which it drops.
__device__ __forceinline__ bool take(const Input& input, const Patch& patch,
                                     Src::Held (&x)[kVectors], u32 (&magnitudes)[kVectors]) {
  input.load(patch, x);
  return quantize::measure<Src>(x, magnitudes);
}

// Raises the tops to those of a patch.
__device__ __forceinline__ void raise(Tops& tops, const Src::Held (&x)[kVectors],
                                      const u32 (&magnitudes)[kVectors]) {
  if (kColumnStrips && writes_columns()) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) quantize::raise_tops<Src>(tops.columns, x[i]);
  }
  if constexpr (kSquares) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) tops.square = reduce::max(tops.square, magnitudes[i]);
  }
}

// ---- scales -------------------------------------------------------------------------------------

// The encode scales of the thread's columns, or of its square block.
constexpr int kEncodeScales = kColumnStrips ? Src::kElements : 1;

struct SharedScales {
  Maxima maxima;
  float encode_scales[1][kColumnStrips ? cfg::kTileCols : 1];
};

// Finds and stores the scales that cover rows of several threads. Returns those of the thread's
// columns, or of its square block, in `encode_scales`. Holds barriers.
__device__ __forceinline__ void meet(const quantize::Args& args, SharedScales& shared,
                                     const Patch& patch, const Place& at, const Tops& tops,
                                     float (&encode_scales)[kEncodeScales]) {
  if constexpr (kColumnStrips) {
    if (!writes_columns()) return;
    Words none;
    share_columns(shared, at, tops.columns);
    __syncthreads();
    find_columns(args, shared, none, patch.row - at.row, patch.col - at.column);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < Src::kElements; ++j) {
      encode_scales[j] = shared.encode_scales[0][at.column + j];
    }
  }
  if constexpr (kSquares) {
    u32 all[kVectors];
#pragma unroll
    for (u32& top : all) top = tops.square;
    share_squares(shared, at, all);
    __syncthreads();
    encode_scales[0] = square_encode_scale(shared, at);
    if (!cfg::kCopiesApart || writes_rows()) store_square(args, patch, at, encode_scales[0]);
  }
}

// ---- the transposed copy ------------------------------------------------------------------------

// The codes of the rows held at once, staged so that neighbouring threads store neighbouring
// columns. A column has kTileRows bytes, kPieceRows of them from one thread. 16 bytes lie between 8
// columns and the next. The lanes of a warp have columns that are 8 apart; without the gap they
// would write to one bank.
template <int kPieceRows>
struct ColumnCodes {
  static constexpr int kUnits = cfg::kTileRows / 16;  // 16-byte pieces of a column
  static constexpr int kGapColumns = 8;
  static constexpr int kBytes = kBlock * cfg::kTileRows + kBlock / kGapColumns * 16;
  static_assert(kPieceRows == 8 || kPieceRows == 4 || kPieceRows == 2, "a piece is of whole pairs");
  alignas(16) u8 byte[kBytes];

  static __device__ __forceinline__ int place(int column, int row) {
    return column * cfg::kTileRows + column / kGapColumns * 16 + row;
  }

  // Stages the thread's codes.
  __device__ __forceinline__ void put(const Place& at, const Src::Held (&x)[kVectors],
                                      const float (&encode_scales)[kEncodeScales]) {
#pragma unroll
    for (int j = 0; j < Src::kElements; ++j) {
      const float encode_scale = encode_scales[kColumnStrips ? j : 0];
      u8* const piece = byte + place(at.column + j, at.row);
#pragma unroll
      for (int i = 0; i < kPieceRows; i += 2) {
        const u32 pair = quantize::cast_pair<cfg::kTargetType>(
            __fmul_rn(quantize::value_at<Src>(x[i + 1], j), encode_scale),
            __fmul_rn(quantize::value_at<Src>(x[i], j), encode_scale));
        reinterpret_cast<u16*>(piece)[i / 2] = static_cast<u16>(pair);
      }
    }
  }

  // Stages the codes of the patch's infinities and NaNs over the zeros', and returns their count.
  __device__ __forceinline__ u32 mark_nonfinite(const Place& at, const Patch& patch,
                                                const Input& input) {
    return quantize::recode_nonfinite<cfg::kTargetType>(
        patch, input, [&](int row, int, int j, u32 code) {
          byte[place(at.column + j, at.row + row)] = static_cast<u8>(code);
        });
  }

  // Writes everything staged, by all threads, and zeros up to the end of the copy's padding. Call
  // it after a barrier. `row0`, `col0`: where the staged rows begin.
  __device__ __forceinline__ void write(const quantize::Args& args, i64 row0, i64 col0) const {
    static_assert(kBlock * kUnits % cfg::kThreads == 0, "every thread writes as many");
    const i64 ld = args.ldq_transposed;
    const int columns = quantize::clamp_count(args.cols - col0, kBlock);
    const int rows = quantize::clamp_count(quantize::padded_columns(args) - row0, cfg::kTileRows);
    const bool aligned =
        (reinterpret_cast<u64>(args.q_transposed) | static_cast<u64>(ld)) % 16 == 0;
    char* const q = static_cast<char*>(args.q_transposed) + col0 * ld + row0;
#pragma unroll
    for (int k = 0; k < kBlock * kUnits / cfg::kThreads; ++k) {
      const int unit = k * cfg::kThreads + static_cast<int>(threadIdx.x);
      const int column = unit / kUnits, row = unit % kUnits * 16;
      if (column >= columns || row >= rows) continue;
      const u8* const codes = byte + place(column, row);
      char* const p = q + column * ld + row;
      if (aligned) {
        memory::store_16(p, *reinterpret_cast<const quantize::Vector*>(codes));
      } else {
#pragma unroll 1
        for (int i = 0; i < 16; ++i) memory::store_1(p + i, codes[i]);
      }
    }
  }
};

// ---- the kernel ---------------------------------------------------------------------------------

struct NoCodes {};
using Codes = quantize::Conditional<cfg::kTransposed, ColumnCodes<kVectors>, NoCodes>::Type;

// Writes a patch of the row-wise copy. This and the next are templates so that they compile where
// they are called only.
template <typename Scales>
__device__ __forceinline__ void write_rowwise(const quantize::Args& args, const Input& input,
                                              const Patch& patch, const Place& at,
                                              const Src::Held (&x)[kVectors],
                                              u32 (&magnitudes)[kVectors],
                                              const Scales& encode_scales, bool nonfinite) {
  RowStrips strips;
  if constexpr (kStrips) {
    Words none;
    strips.find(args, patch, at, magnitudes, none);
  }
  const Output output(args, patch);
  output.template write<cfg::kTargetType>(patch, x, [&](int i) {
    if constexpr (kStrips) {
      return strips.encode_scale(static_cast<u32>(at.lane), i);
    } else {
      return encode_scales[0];
    }
  });
  if (nonfinite) {
    const u32 found = output.template mark_nonfinite<cfg::kTargetType>(patch, input);
    quantize::count_nonfinite(args, found);
  }
}

// Writes a patch of the transposed copy. Holds a barrier.
template <typename Staged>
__device__ __forceinline__ void write_transposed(const quantize::Args& args, Staged& codes,
                                                 const Input& input, const Patch& patch,
                                                 const Place& at, const Src::Held (&x)[kVectors],
                                                 const float (&encode_scales)[kEncodeScales],
                                                 bool nonfinite) {
  codes.put(at, x, encode_scales);
  if (nonfinite) {
    const u32 found = codes.mark_nonfinite(at, patch, input);
    if (!cfg::kRowwise) quantize::count_nonfinite(args, found);
  }
  __syncthreads();
  codes.write(args, patch.row - at.row, patch.col - at.column);
}

__device__ __forceinline__ void run(const quantize::Args& args) {
  __shared__ SharedScales shared;
  __shared__ Codes codes;
  const Place at(static_cast<int>(threadIdx.x));
  const i64 across = (args.cols + kBlock - 1) / kBlock;
  const quantize::Tile tile = quantize::tile_at(tile_number(), static_cast<u64>(across));
  const i64 first_row = tile.row * kBlock + at.row;
  Patch patch(args, first_row, tile.col * kBlock + at.column);
  Input input(args, patch);
  input.settle();
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;

  // All threads visit as many patches, because barriers and shuffles stand between.
  const int rows = quantize::clamp_count(args.rows - tile.row * kBlock, kBlock);
  Src::Held x[kVectors];
  u32 magnitudes[kVectors];
  Tops tops = {};
  bool nonfinite = false;
#pragma unroll 1
  for (int row = cfg::kTileRows;; row += cfg::kTileRows) {
    nonfinite |= take(input, patch, x, magnitudes);
    raise(tops, x, magnitudes);
    if (row >= rows) break;
    patch = Patch(args, first_row + row, patch.col);
    input = Input(args, patch);
  }

  float encode_scales[kEncodeScales];
  meet(args, shared, Patch(args, first_row, patch.col), at, tops, encode_scales);
#pragma unroll 1
  for (int row = 0; row < rows; row += cfg::kTileRows) {
    const bool held = rows <= cfg::kTileRows;
    if (!held) {
      patch = Patch(args, first_row + row, patch.col);
      input = Input(args, patch);
      take(input, patch, x, magnitudes);
    }
    if constexpr (cfg::kRowwise) {
      if (writes_rows()) {
        write_rowwise(args, input, patch, at, x, magnitudes, encode_scales, nonfinite);
      }
    }
    if constexpr (cfg::kTransposed) {
      if (!writes_columns()) continue;
      if (row > 0) __syncthreads();  // the codes before are read
      write_transposed(args, codes, input, patch, at, x, encode_scales, nonfinite);
    }
  }
}

}  // namespace few_rows

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  few_rows::run(args);
}
