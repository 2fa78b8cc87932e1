// Quantisation by thread blocks. Each holds a tile of 128 (or 256) rows x 128 (or 64) columns,
// which it reads once for every output: any granularity, row-wise, transposed or both.
//
//   q [r, c] = fp8(x[r, c] * encode scale of (r, c)),             scale   = 1 / encode scale
//   qt[c, r] = fp8(x[r, c] * encode scale of (c, r) transposed),  scale_t = 1 / its encode scale
//
// A thread holds a patch of 8 (or 4) vectors of 16 bytes; a half-warp covers 256 contiguous bytes
// of a row (fp32: a warp covers 512). With a transposed output a thread's rows are consecutive, so
// that one cvt converts two rows' codes of a column. Without one they are interleaved with the
// other threads' rows, so that one load of the thread block is contiguous:
//
//             |<------- 128 columns ------->|      |<------- 128 columns ------->|
//     row 0   | thread 0 | ...  | thread 15 |      | thread 0 | ...  | thread 15 |  vector 0
//     row 1   | thread 0 | ...  | thread 15 |      | thread 16| ...  | thread 31 |  vector 0
//      ...                                          ...
//     row 8   | thread 16| ...  | thread 31 |      row 16 of the interleaved: thread 0, vector 1
//
// Steps of a thread block (quantize_tile):
//   source  every thread issues its 8 loads before it uses the first; x stays in registers
//   bias    the sums of the columns, before infinities and NaNs are dropped (bias.cuh, one barrier)
//   amax    1x128, 1x32: shuffles find a row's maximum; a column's is the thread's packed maximum,
//           then the warps' through shared memory. Square blocks: a warp's, then its warps' through
//           shared memory. Per row and per tensor: another kernel found them (line_amax.cu,
//           tensor_amax.cu)
//   scale   one thread derives a column's; every thread derives its rows', which costs less than a
//           barrier
//   cast    fp32 multiply, then two codes a cvt
//   output  row-wise: 8 bytes a thread, 128 contiguous bytes a half-warp and store. Transposed:
//           through shared memory (columns.cuh), 128 or 256 contiguous bytes a column
//
// Shared memory (static): `maxima` (a word for each warp and block, or 16 bytes for each warp and
// column group) shares its place with the staged codes, which are written after the barrier behind
// the last reader of `maxima`. `encode_scales` lies beside both. Dynamic, from cfg::kWaitingOffset
// on: the right half's values, if one block casts both halves (kHalvesTogether).
//
// If there are few tiles, a tile's two copies may have a thread block each (cfg::kCopiesApart).
// Both blocks read x, and each takes the steps of its own copy.
//
// Why it is built so:
//   - A barrier stops a thread block until its last load arrives, so the other blocks of the SM
//     must supply the bandwidth: 3 x 32 KB in flight against the 33 KB that memory needs.
//   - Small tensors leave most SMs idle: their tiles are 64 columns wide. If a scale covers 128
//     columns, both thread blocks side by side read all of them, and the first stores the scale.
//   - The row-wise copy is written before the columns' maxima meet, so that its scales are not held
//     in registers meanwhile. Cheap values are recomputed for the same reason
//     (hide_from_optimizer).
//   - Requantised input stays encoded: each vector holds 8 codes and their scale (scaled.cuh).
// docs/experiments/quantize.md lists what was tried and measured.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_cta_tile_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/cta_tile_scales.cuh"
#endif

namespace cta_tile {

// For fp32 squares the tile's origin is not held beside 32 words of x. It is read from shared
// memory after the barrier that the maxima need anyway.
constexpr bool kAsksForPlace = kSquares && Src::kElementsAWord == 1 && !Src::kMadeAnew;

using Stage = quantize::ColumnStage<Src, cfg::kTransposed ? kVectors : quantize::kStagedRows,
                                    cfg::kTileRows, cfg::kTileCols, cfg::kThreads>;
struct Shared {
  union {
    Maxima maxima;
    Stage stage;
  };
  float encode_scales[kStrips && cfg::kTransposed ? kBlocksDown : 1][cfg::kTileCols];
  quantize::Tile origin;  // first row and column of the tile
};

// With both copies the next kernel may start when the row-wise one is written. Thread blocks that
// are resident earlier would be spread unevenly over the SMs.
constexpr bool kNextStartsLate = cfg::kRowwise && cfg::kTransposed;

// Waits for the kernels before. Then the next kernel may start, unless that comes later.
__device__ __forceinline__ void wait() {
  wait_for_previous_kernel();
  if constexpr (!kNextStartsLate) let_next_kernel_start();
}

// ---- source -------------------------------------------------------------------------------------

// Loads the patch's values. If the thread block casts both halves, the right one's values (`right`)
// come from dynamic shared memory.
template <typename From>
__device__ __forceinline__ void load(const From& input, const Patch& patch, bool right,
                                     Src::Held (&x)[kVectors]) {
  if constexpr (cfg::kHalvesTogether) {
    u8* const waiting = dynamic_memory() + cfg::kWaitingOffset;
    auto* const kept = reinterpret_cast<quantize::Vector*>(waiting) + threadIdx.x;
    input.template load_half<cfg::kThreads>(patch, right, kept, x);
  } else {
    input.load(patch, x);
  }
}

// Finds the input's address, then waits for the kernels before.
template <typename From>
__device__ __forceinline__ void wait_behind(From& input) {
  input.settle();
  wait();
}

// The vectors a thread reads of the neighbouring tiles that share its tile's scales.
struct Neighbours {
  static constexpr int kTiles = kSharers - 1;
  Src::Held x[kTiles > 0 ? kTiles : 1][kVectors];

  __device__ __forceinline__ void load(const View& args, const Patch& patch) {
    if constexpr (kSharers > 1) {
      if (!wanted()) return;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const i64 in_block = (patch.col + (i + 1) * cfg::kTileCols) % kBlock;
        const Patch other(args, patch.row, patch.col - patch.col % kBlock + in_block);
        Input(args, other).load(other, x[i]);
      }
    }
  }
  // Raises the maxima of the rows to theirs. Only the block that casts them counts their infinities
  // and NaNs.
  __device__ __forceinline__ void raise(u32 (&magnitudes)[kVectors]) {
    if constexpr (kSharers > 1) {
      if (!wanted()) return;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        u32 others[kVectors];
        quantize::measure<Src>(x[i], others);
#pragma unroll
        for (int k = 0; k < kVectors; ++k) magnitudes[k] = reduce::max(magnitudes[k], others[k]);
      }
    }
  }

 private:
  // Scales along the columns are not shared.
  static __device__ __forceinline__ bool wanted() { return kSquares || writes_rows(); }
};

// ---- amax ---------------------------------------------------------------------------------------

// Finds the maxima of a patch of codes and returns whether there were infinities or NaNs, which it
// drops. Each value is made once and serves the maxima of its column and, if they are wanted, of
// its row. If there are infinities and NaNs, a second round of the loop measures again without
// them, so that both cases share the same instructions.
__device__ __forceinline__ bool measure_codes(Src::Held (&x)[kVectors], Src::Tops& columns,
                                              u32 (&rows)[kVectors]) {
  bool nonfinite = false;
#pragma unroll 1
  while (true) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if constexpr (cfg::kRowwise) rows[i] = Src::magnitude(x[i]);
      if (i == 0) {
        columns = quantize::tops_of<Src>(x[0]);
      } else {
        quantize::raise_tops<Src>(columns, x[i]);
      }
    }
    if (Src::magnitude(columns) < Src::kInfinity) return nonfinite;
    nonfinite = true;
    quantize::drop_nonfinite<Src>(x);
  }
}

constexpr bool kOnlyColumns = kStrips && cfg::kTransposed && !cfg::kRowwise;

// Finds the maxima of the thread's columns and returns whether there were infinities or NaNs, which
// it drops.
template <typename Held>
__device__ __forceinline__ bool measure_columns(Held (&x)[kVectors], Src::Tops& columns) {
  columns = column_maxima(x);
  const bool nonfinite = Src::magnitude(columns) >= Src::kInfinity;
  if (nonfinite) {
    quantize::drop_nonfinite<Src>(x);
    columns = column_maxima(x);
  }
  return nonfinite;
}

// Finds the maxima of the patch's vectors or columns, whichever the scales need. Returns whether
// there were infinities or NaNs, which it drops. It is a template so that only the branch that is
// taken has to compile.
template <typename Held>
__device__ __forceinline__ bool measure_patch(Held (&x)[kVectors], Src::Tops& columns,
                                              u32 (&magnitudes)[kVectors]) {
  bool nonfinite;
  if constexpr (Src::kMadeAnew && kStrips && cfg::kTransposed) {
    nonfinite = measure_codes(x, columns, magnitudes);
    quantize::hide_from_optimizer(x);
  } else if constexpr (kOnlyColumns) {
    nonfinite = measure_columns(x, columns);
  } else if (kStrips && cfg::kCopiesApart && writes_columns()) {
    nonfinite = measure_columns(x, columns);
  } else {
    nonfinite = quantize::measure<Src>(x, magnitudes);
    // The values of every word would not fit beside x if they were kept for the columns' maxima.
    if constexpr (cfg::kTransposed) quantize::hide_from_optimizer(x);
  }
  return nonfinite;
}

// Returns the maximum of the tensor or group that the first pass found, or 0 if there is none.
__device__ __forceinline__ u32 known_maximum(const View& args) {
  if constexpr (kPerTensor && kAfterFirstPass) wait();
  return kPerTensor && !cfg::kDelayed ? quantize::known_magnitude(args) : 0;
}

// ---- scale --------------------------------------------------------------------------------------

// Returns the one encode scale of a tensor or group. The first tile stores it.
__device__ __forceinline__ float tensor_encode_scale(const View& args, bool first_tile,
                                                     const quantize::Given& given, u32 known,
                                                     const u32 (&magnitudes)[kVectors]) {
  const float encode_scale = cfg::kDelayed ? given.encode_scale : encode_scale_of(known);
  if constexpr (cfg::kDelayed) quantize::record_amax<Src>(args, given, magnitudes);
  if (first_tile && threadIdx.x == 0) {
    if (!cfg::kDelayed) quantize::record_scale<Src>(args, known, encode_scale);
    if constexpr (cfg::kRowwise) Rule::store(args.scale, 0, encode_scale);
    if constexpr (cfg::kTransposed) Rule::store(args.scale_transposed, 0, encode_scale);
  }
  return encode_scale;
}

// Returns the encode scale of the thread's square block. Holds one barrier.
template <typename Memory>
__device__ __forceinline__ float find_square(const View& args, Memory& shared, const Patch& patch,
                                             const Place& at, const quantize::Tile& origin,
                                             const u32 (&magnitudes)[kVectors]) {
  constexpr bool kStoresLater = cfg::kTransposed && kAsksForPlace;
  if constexpr (kStoresLater) {
    if (threadIdx.x == 0) shared.origin = origin;
  }
  share_squares(shared, at, magnitudes);
  __syncthreads();
  const float encode_scale = square_encode_scale(shared, at);
  if constexpr (!kStoresLater) {
    if (!cfg::kCopiesApart || writes_rows()) store_square(args, patch, at, encode_scale);
  }
  return encode_scale;
}

// ---- output -------------------------------------------------------------------------------------

// Writes the codes of the patch's infinities and NaNs over the zeros' and counts them.
__device__ __forceinline__ void mark_rowwise(const View& args, const Output& output,
                                             const Patch& patch) {
  quantize::count_nonfinite(
      args, output.template mark_nonfinite<cfg::kTargetType>(patch, Input(args, patch)));
}

// Writes the thread's codes of the row-wise copy. It is a template so that it compiles where it is
// called only.
template <typename Memory>
__device__ __forceinline__ void write_rowwise(const View& args, const Parts<Memory>& parts,
                                              const Patch& patch, const Place& at,
                                              const Src::Held (&x)[kVectors],
                                              u32 (&magnitudes)[kVectors], float patch_scale,
                                              bool nonfinite) {
  if constexpr (cfg::kRowwise) {
    RowStrips strips;
    if constexpr (kStrips) strips.find(args, patch, at, magnitudes, parts.words_of_rows);
    const Output output(args, patch);
    output.template write<cfg::kTargetType>(patch, x, [&](int i) {
      if constexpr (kStrips) {
        return strips.encode_scale(static_cast<u32>(at.lane), i);
      } else if constexpr (kPerRow) {
        return parts.lines.of[at.row + i * Patch::kRowStep];
      } else {
        return patch_scale;
      }
    });
    if (nonfinite) mark_rowwise(args, output, patch);
  }
}

// Returns where the tile begins: as it is known, or read again from shared memory.
template <typename Memory>
__device__ __forceinline__ quantize::Tile origin_of(const Memory& shared,
                                                    const quantize::Tile& origin,
                                                    const Patch& patch, const Place& at) {
  if constexpr (cfg::kHalvesTogether) return origin;
  if constexpr (kAsksForPlace) return shared.origin;
  return {patch.row - at.row, patch.col - at.column};
}
// Returns the thread's patch of the tile: as it is known, or derived again from the origin.
template <typename Memory>
__device__ __forceinline__ Patch patch_of(const View& args, const Memory& shared,
                                          const quantize::Tile& origin, const Patch& patch,
                                          const Place& at) {
  if constexpr (!cfg::kHalvesTogether && !kAsksForPlace) return patch;
  const quantize::Tile tile = origin_of(shared, origin, patch, at);
  return {args, tile.row + at.row, tile.col + at.column};
}

// Returns false, which the assembler does not know: it moves nothing from behind such a branch to
// before it. Without the branch it converts the values of a thread's second half of columns before
// those of the first are codes, and spills.
__device__ __forceinline__ bool never(const View& args) { return args.cols == 0; }

// Stages the thread's codes of kPutColumns of its columns. `patch_scale`: their encode scale, if
// they share it.
constexpr int kPutColumns = Src::kMadeAnew ? Src::kElements / 2 : Src::kElements;
template <int kFirst, typename Memory>
__device__ __forceinline__ void put_columns(Memory& shared, const LineScales& lines,
                                            const Place& at, const Src::Held (&x)[kVectors],
                                            float patch_scale) {
  float encode_scales[kPutColumns];
#pragma unroll
  for (int j = 0; j < kPutColumns; ++j) {
    if constexpr (kPerRow) encode_scales[j] = lines.of[cfg::kTileRows + at.column + kFirst + j];
    if constexpr (kStrips) {
      encode_scales[j] = shared.encode_scales[at.block_down][at.column + kFirst + j];
    }
    if constexpr (!kStrips && !kPerRow) encode_scales[j] = patch_scale;
  }
  shared.stage.template put<cfg::kTargetType, Patch, kFirst>(at.patch_row, at.column, x,
                                                             encode_scales);
}

// Finds and stores the scales of the columns. Holds one barrier.
template <typename Memory>
__device__ __forceinline__ void meet_columns(const View& args, const Parts<Memory>& parts,
                                             const quantize::Tile& origin, const Patch& patch,
                                             const Place& at, const Src::Held (&x)[kVectors],
                                             Src::Tops& columns) {
  if constexpr (!kOnlyColumns && !cfg::kCopiesApart && !Src::kMadeAnew) columns = column_maxima(x);
  share_columns(parts.shared, at, columns);
  __syncthreads();
  const quantize::Tile here = origin_of(parts.shared, origin, patch, at);
  find_columns(args, parts.shared, parts.words_of_columns, here.row - quantize::first_row(args),
               here.col);
}

// Stages the codes of the patch's infinities and NaNs, and counts them unless mark_rowwise did.
template <typename Memory>
__device__ __forceinline__ void mark_staged(const View& args, Memory& shared,
                                            const quantize::Tile& origin, const Patch& patch,
                                            const Place& at) {
  const Patch here = patch_of(args, shared, origin, patch, at);
  const u32 found = shared.stage.template mark_nonfinite<cfg::kTargetType>(at.patch_row, at.column,
                                                                           here, Input(args, here));
  if (!cfg::kRowwise) quantize::count_nonfinite(args, found);
}

// Writes the staged codes of the whole tile. Holds one barrier.
template <typename Memory>
__device__ __forceinline__ void write_staged(const View& args, Memory& shared,
                                             const quantize::Tile& origin, const Patch& patch,
                                             const Place& at, float patch_scale) {
  __syncthreads();
  const quantize::Tile here = origin_of(shared, origin, patch, at);
  shared.stage.write(args, here.row - quantize::first_row(args), here.col);
  if constexpr (kAsksForPlace) {
    store_square(args, patch_of(args, shared, origin, patch, at), at, patch_scale);
  }
}

// ---- the kernel ---------------------------------------------------------------------------------

// Quantises the tile that begins at `origin`, by all threads of the block. `right`: the tile is the
// right half's, whose values wait. With kPlacedBeforeWait it holds the wait for the kernels before.
template <bool kTransposed, typename Arguments, typename Memory>
__device__ __forceinline__ void quantize_tile(Arguments& args, const Parts<Memory>& parts,
                                              const quantize::Tile& origin, bool first_tile,
                                              bool right) {
  Place at(static_cast<int>(threadIdx.x));
  Patch patch(args, origin.row + at.row, origin.col + at.column);
  Input input(args, patch);
  if constexpr (kPlacedBeforeWait) {
    wait_behind(input);
    if (quantize::skipped(args)) return;
  }
  quantize::Given given = {};
  if constexpr (cfg::kDelayed) given = quantize::given_scale(args);
  Src::Held x[kVectors];
  load(input, patch, right, x);
  if constexpr (cfg::kHalvesTogether) {  // derived again: it is not kept beside inputs and values
    at = Place(::hide_from_optimizer(static_cast<int>(threadIdx.x)));
  }
  Neighbours neighbours;
  neighbours.load(args, patch);
  if constexpr (cfg::kBiasGradient) {  // infinities and NaNs count
    __shared__ Bias bias;
    bias.put(at.patch_row, at.column, x);
    __syncthreads();
    bias.write(args, origin.row, origin.col);
  }
  patch.row = hide_from_optimizer(patch.row);  // addresses are not kept beside 32 words of x

  const u32 known = known_maximum(args);
  u32 magnitudes[kVectors];
  Src::Tops columns;
  const bool nonfinite = measure_patch(x, columns, magnitudes);
  neighbours.raise(magnitudes);

  float patch_scale = 1.0f;  // the encode scale of the thread's whole patch, if there is one
  if constexpr (kPerTensor) {
    patch_scale = tensor_encode_scale(args, first_tile, given, known, magnitudes);
  }
  if constexpr (kPerRow) {
    wait();
    find_lines(args, parts.lines, origin.row, origin.col);
    __syncthreads();
  }
  if constexpr (kSquares) {
    patch_scale = find_square(args, parts.shared, patch, at, origin, magnitudes);
  }

  // The row-wise copy is written before the columns' maxima meet, so that its values are not held
  // meanwhile.
  if (writes_rows()) {
    write_rowwise(args, parts, patch, at, x, magnitudes, patch_scale, nonfinite);
    // x is converted and scaled again below: 64 products would not fit beside it.
    if constexpr (kTransposed) quantize::hide_from_optimizer(x);
  }

  if constexpr (kNextStartsLate) let_next_kernel_start();
  if (cfg::kCopiesApart && writes_rows()) return;
  if constexpr (kTransposed) {
    auto& shared = parts.shared;
    if constexpr (kStrips) meet_columns(args, parts, origin, patch, at, x, columns);
    if constexpr (kSquares || kStrips) __syncthreads();  // all maxima are read, all scales written
    const quantize::Tile tile = origin_of(shared, origin, patch, at);
    put_words(args, at, parts.words_of_rows, parts.words_of_columns, tile.row, tile.col);
    put_columns<0>(shared, parts.lines, at, x, patch_scale);
    if constexpr (Src::kMadeAnew) {
      if (never(args)) return;
      put_columns<kPutColumns>(shared, parts.lines, at, x, patch_scale);
    }
    if (nonfinite) mark_staged(args, shared, origin, patch, at);
    write_staged(args, shared, origin, patch, at, patch_scale);
  }
}

// Returns the block's tile, in tiles.
__device__ __forceinline__ quantize::Tile tile_of_block(const quantize::Args& whole, i64 cols) {
  const u64 across = static_cast<u64>(cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 down = static_cast<u64>(Groups::template slots<cfg::kTileRows>(whole));
  return cfg::kRowsFastest ? quantize::turned(quantize::tile_at(tile_number(), down))
                           : quantize::tile_at(tile_number(), across);
}

template <bool kTransposed>
__device__ __forceinline__ void run(const quantize::Args& whole) {
  if constexpr (!kAfterFirstPass && !kPlacedBeforeWait) wait();
  if (!kPlacedBeforeWait && quantize::skipped(whole)) return;
  using Memory = typename quantize::Conditional<kTransposed, Shared, SharedMaxima>::Type;
  __shared__ Memory shared;
  const i64 cols = cfg::kHalvesTogether ? whole.cols / 2 : whole.cols;
  quantize::Tile tile = tile_of_block(whole, cols);
  if constexpr (kPlacedBeforeWait) tile = quantize::settled(tile);
  __shared__ LineScales lines;
  __shared__ Words words_of_rows, words_of_columns;
  auto&& args =
      Groups::template enter_block<cfg::kTileRows, kPerTensor, cfg::kThreads>(whole, tile.row);
  // Without groups this must not occupy a register.
  const bool first_tile = cfg::kGroupWalk == 0 ? blockIdx.x == 0 : tile.row == 0 && tile.col == 0;
  const i64 row0 = quantize::first_row(args) + tile.row * cfg::kTileRows;
  const i64 col0 = tile.col * cfg::kTileCols;
  // The first tile of an empty group remains, because it stores the group's scale.
  if (cfg::kGroupWalk != 0 && row0 >= quantize::end_row(args) && !(kPerTensor && first_tile))
    return;
  const Parts<Memory> parts{shared, lines, words_of_rows, words_of_columns};
  if constexpr (cfg::kHalvesTogether) {
    __shared__ quantize::Tile halves[2];
    if (threadIdx.x < 2) halves[threadIdx.x] = {row0, col0 + static_cast<int>(threadIdx.x) * cols};
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      __syncthreads();  // the left half's codes are stored
      quantize_tile<kTransposed>(args, parts, halves[half], first_tile, half != 0);
    }
  } else {
    quantize_tile<kTransposed>(args, parts, quantize::Tile{row0, col0}, first_tile, false);
  }
}

}  // namespace cta_tile

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  const quantize::Entered<cfg::Arguments> at(all);
  cta_tile::run<cfg::kTransposed>(at.args);
}
