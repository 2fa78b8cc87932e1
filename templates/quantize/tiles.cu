// Quantisation by thread blocks of 128 (or 256) rows x 128 (or 64) columns, one read for every
// output: any granularity, row-wise, transposed or both.
//
//   q [r, c] = fp8(x[r, c] * encode of (r, c)),             scale   = 1 / encode
//   qt[c, r] = fp8(x[r, c] * encode of (c, r) transposed),  scale_t = 1 / its encode
//
// One thread holds 8 vectors of 16 bytes, a half-warp 256 contiguous bytes of a row (fp32: a warp
// 512). With a transposed output a thread's rows are consecutive, so that two rows' codes of a
// column come from one cvt; without one they are interleaved with the other threads', so that a
// load of the thread block is a contiguous piece:
//
//             |<------- 128 columns ------->|      |<------- 128 columns ------->|
//     row 0   | thread 0 | ...  | thread 15 |      | thread 0 | ...  | thread 15 |  vector 0
//     row 1   | thread 0 | ...  | thread 15 |      | thread 16| ...  | thread 31 |  vector 0
//      ...                                          ...
//     row 8   | thread 16| ...  | thread 31 |      row 16 of the interleaved: thread 0, vector 1
//
// Of tensors so small that an SM has one tile at most, tiles are 64 columns wide, and a thread that
// stages codes may hold 4 rows. Where a scale covers 128 columns, the two thread blocks side by
// side read each other's columns beside their own and find the same maximum, each for itself; the
// first stores the scale.
//
// What is quantised again stays codes, 8 beside their scale a vector (scaled.cuh), as 16-bit
// elements would lie.
//
// Two expressions of the same inputs, the left and the right half of the columns, may be one thread
// block's (kHalvesTogether): it computes both where it loads, casts the left one's tile, and then
// the right one's, whose values have waited in dynamic shared memory, each in its thread's place.
//
// Phases of a thread block:
//   source  8 independent loads a thread, all issued before the first is used; the tile (32 KB of
//           bf16) stays in registers
//   amax    1xB: of a row by shuffles, of a column by packed maxima of the thread's rows, then over
//           the warps through shared memory; BxB: of a warp, then over its warps through shared
//           memory; per row and per tensor: another kernel has found them (tensor_amax.cu,
//           line_amax.cu)
//   bias    where wanted, the sums of the columns, before infinities and NaNs are dropped
//           (bias.cuh, one barrier)
//   scale   columns: one thread a column; else every thread its own, cheaper than a barrier
//   cast    fp32 multiply; two codes a cvt
//   output  row-wise 8 bytes a thread, 128 contiguous bytes a half-warp and store, before the
//           columns' maxima meet; transposed through shared memory (columns.cuh), 128 or 256
//           contiguous bytes a column
//
// Shared memory (static): `maxima` (a word a warp and block, or 16 bytes a warp and column group)
// lies where the staged codes come to lie after the barrier behind its last reader; `encodes`
// beside them.
//
// A barrier stops a thread block until its last load is there: the bandwidth comes from the other
// blocks of the SM. 3 x 32 KB in flight against 33 KB needed (segments.cu).
//
// Ladder, bf16 to e4m3, one H200, against the fastest stream of the same mix in the same run.
// Row-wise 128x128 at 16384x7168 / 32768x4096 / 4096x7168:
//   version                                      predicted  measured            verdict
//   256 threads, 3 blocks an SM, no_allocate     0.97       0.92 / 0.92 / 0.97  dropped
//   the same, plain ld.global.nc                 -          0.99 / 0.98 / 1.04  this file
//   256 threads, 4 blocks an SM (*)              0.97       0.91 / 0.91 / 0.97  dropped
//   512 threads, 2 blocks an SM (*)              -          0.90 / 0.90 / 0.96  small tensors
//   1024 threads, 1 block an SM (*)              -          0.59 / 0.59 / 0.65  dropped
//   (*) still with no_allocate
// 1x128 transposed, then both, at 16384x7168:
//   3 blocks, neighbours down the rows           0.95       0.91 0.87           was this file
//   4 blocks (64 registers)                      0.93       0.95 0.84 (spills)  transposed: kept
//   neighbours along the rows                    0.90       0.93 0.89           both: kept
//   in bands of 2 to 32 tiles                    0.97       0.90..0.96 0.88     equal: dropped
//   row-wise copy first (no spills)              0.90       0.95 0.90           this file
//   copies written as if contiguous              -          0.99 0.93           ablation
//   256x128 tiles, 512 threads                   0.97       0.87 0.84           dropped
//   256x128 in two steps, 256-byte segments      0.97       0.92 0.89           dropped
//   256x64 tiles                                 0.95       0.91 -              dropped
//   512 threads, patches of 4 rows               0.93       < 0.84              dropped
//   persistent, next tile by cp.async (.cg)      0.97       0.85 0.80           dropped
//   the same through L1 (.ca)                    0.97       0.89 0.82           dropped
//   loads evicted first / stores last or first   0.97       0.87 / 0.95 / 0.94  dropped
//   loads with an L2 prefetch of 128 or 256      0.96       0.95 / 0.95         equal: dropped
//   fewer instructions (see below)               0.98       0.95 0.93           this file
//   fed by TMA, 1 to 6 blocks (a prototype)      0.98 0.97  0.945 0.93          equal: dropped
//   its copies without arithmetic, scales too    -          0.95 0.92..0.95     ablation
// Fewer instructions because the ALU was busy for 74 % of the cycles (ncu), with 912 a thread of
// 1x128 transposed; about 560 are left, counted in the assembly. Addresses of staged codes and of
// the copy derived once, whole patches without bounds, column maxima of both halves of a word at
// once. Where there was more arithmetic it gave more. Ratios, before and after:
//   1x32 both 0.75, 0.82; requantised 1x128 transposed 0.46, 0.60, 1x32 0.20, 0.36
// With the registers that became free, two blocks an SM instead of one:
//   requantised 1x32 0.36, 0.54; 1x128 both 0.46, 0.67; SwiGLU both 0.62, 0.75
// What is quantised again, 16384x7168, e4m3 to e4m3; 1x128 transposed / both / 1x32 transposed:
//   version                                      predicted  measured            verdict
//   4 values of fp32 a vector, 512 threads       -          0.60 0.67 0.54      was this file
//   8 codes a vector, whose values are made      0.85       0.79 0.76 0.72      this file
//   anew for amax and cast: half as many threads,
//   3 registers a vector, 4 blocks an SM (both 3)
//   kept as fp16, 48 instructions fewer, but     0.82       0.70 0.80 0.67      dropped: 22
//   80 registers and 3 blocks an SM                                             cells spill
// SwiGLU both, 16384x7168 (0.745; 44 instructions a value fill 74 % of the issue slots, a quarter
// of the time no warp has one), and its gradient, both:
//   L2 asked for the tile 132, 264, 528 blocks  -          0.63, 0.54, 0.50         dropped: plain
//   ahead (cp.async.bulk.prefetch)                         both 0.89, 0.85, 0.68
//   a block walks along 4 tiles, the next one's 0.92       0.60; one block an SM    dropped
//   inputs on their way (cp.async, 64 KB)                  0.66
//   the same, neighbours at once neighbours     -          0.57; one block 0.63     dropped
//   sigmoids from a table, blocks that stay     0.90       0.755                    dropped
//   1024 threads of 4 rows                      -          0.57, gradient 0.46      dropped
//   gradient: 512 threads, one block (80)       -          0.485                    was this file
//   two blocks, two vectors' loads at a time    -          0.580                    dropped
//   the same, three                             -          0.587                    was this file
//   both halves by one block, the right one's   0.76       0.734; 4096x7168 0.578   this file
//   values waiting in shared memory (64 KB):               -> 0.683
//   inputs are read and sigmoids found once
// That takes 64 registers because what is behind a barrier finds the tile's origin in shared memory
// and its own place anew; kept, they spill.
// About 880 instructions a thread of 64 codes are left of 1x128 transposed; 580 are its conversions
// and products.
// 1x32 both, 16384x7168 (0.797); L2 asked for the scales of a tile 256 times, 4 bytes each, as
// often as for its codes:
//   without scales / the rows' / the columns'   -          0.917, 0.856, 0.840     ablation
//   by whole sectors, put in order behind       0.88       0.855; 4096x7168 0.773  this file
//   (ordered_scales.cuh)                                   -> 0.795
//   the same, a group a thread block there      -          0.827                   dropped
//   the transposed copy alone so                0.93       0.904 for 0.912         dropped
//   what is quantised again so, transposed      0.76       0.70 for 0.73           dropped
// fp32 128x128 both, 64 registers and two blocks an SM since scales are stored at the end, where x
// is gone, by who asks shared memory where the tile lies (predicted as 1x128, 0.94): 0.81, 0.96.
// Per row, both: every thread derived the scales of its 16 lines; now a thread derives one or two:
// 0.80, 0.87. Beside that, line_amax.cu with 4 blocks an SM and stripes of 256 rows: 202.5 us,
// 200.8 (dropped: spills of codes). Contiguous groups, one search a thread block (groups.cuh),
// transposed with 4 blocks an SM; 1x128 transposed / both / 1x32 both: 0.88 0.865 0.76, 0.92 0.89
// 0.77.
// Small tensors, 128x7168 bf16, us (an empty kernel 0.44): 56 tiles of 128x128 leave 76 SMs idle,
// and a thread block takes what one thread takes from its loads to its last store. 1x128 transposed
// / both / 128x128 both / 1x32 both / 32x32 both:
//   128x128, 8 rows a thread                   -          3.18 3.93 3.62 4.50 3.45    large tensors
//   128x128, 4 rows a thread                   < 3.4 both 3.37 4.03 3.80 4.37 3.69    dropped
//   128x64, 8 rows a thread                    -0.3       2.86 3.51 3.25 3.73 2.96    col: kept
//   128x64, 4 rows a thread                    -0.5       2.96 3.47 3.20 3.60 3.02    kept
//   128x32, 4 rows a thread                    -0.6       3.00 4.15 3.87 4.03 3.25    dropped
//   128x64, column maxima before the row-wise  -0.15      both 3.47, 1x32 both 3.65   equal:
//   dropped copy, which hides their barrier
// Two narrow tiles an SM (256x7168) 4.67 -> 4.61, 4.35 -> 4.09; four (512x7168) 6.78 -> 8.04, lost.
// SwiGLU both, whose source is computed for the neighbour too: 5.89 -> 6.32, not narrow.
// Given scales: what every warp asked L2 for, one word after x was there, is asked for before x and
// through L1: row-wise (segments.cu) 3.00 -> 2.50, both 3.40 -> 2.80. Asked for before x, past L1:
// row-wise 3.26. Per row both 8.23 -> 5.00, since nothing is cleared (line_amax.cu); with the first
// pass letting this kernel start early (launch_dependents), 5.74, and per tensor 4.57 for 4.46.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_tiles_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

namespace tiles {

using Src = cfg::Values<quantize::Source<cfg::kSourceType>>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using Runs = quantize::ScaleRuns<Rule, cfg::kSwizzled>;

constexpr bool kPerTensor = cfg::kGranularity == quantize::kPerTensor;
constexpr bool kPerRow = cfg::kGranularity == quantize::kPerRow;
// Then x may be loaded while that pass ends: it waited for all before itself.
constexpr bool kAfterFirstPass = kPerRow || (kPerTensor && !cfg::kDelayed);
constexpr bool kStrips =
    cfg::kGranularity == quantize::k1x128 || cfg::kGranularity == quantize::k1x32;
constexpr bool kSquares =
    cfg::kGranularity == quantize::k128x128 || cfg::kGranularity == quantize::k32x32;
constexpr bool kShort =
    cfg::kGranularity == quantize::k1x32 || cfg::kGranularity == quantize::k32x32;
constexpr int kBlock = kShort ? 32 : 128;  // elements along a scale, of strips and squares

constexpr int kLanes = cfg::kTileCols / Src::kElements;  // threads along a row of the tile
constexpr int kPatchRows = cfg::kThreads / kLanes;       // patches along a column of the tile
constexpr int kVectors = cfg::kTileRows / kPatchRows;    // loads of a thread
constexpr int kWarps = cfg::kThreads / 32;
constexpr int kWarpRows = cfg::kTileRows / kWarps;  // consecutive rows of a warp
// Thread blocks that share a scale, side by side: each reads all that it is of and casts its own.
constexpr bool kAcrossRows = kSquares || (kStrips && cfg::kRowwise);
constexpr int kSharers = kAcrossRows && cfg::kTileCols < kBlock ? kBlock / cfg::kTileCols : 1;
constexpr bool kInterleaved = !cfg::kTransposed && !kShort && !cfg::kBiasGradient;

static_assert(128 % cfg::kTileCols == 0 && cfg::kTileRows % 128 == 0,
              "a tile is whole blocks, or so is it with its neighbours");
static_assert(kVectors * kPatchRows == cfg::kTileRows, "a tile is whole patches");
static_assert(kInterleaved || !(kStrips || kSquares) || kWarpRows <= kBlock,
              "the rows of a warp share a block");
static_assert(!kInterleaved || cfg::kTileRows == 128, "interleaved rows share one block");

using Groups = quantize::Walk<cfg::kGroupWalk>;
using View = Groups::View;
using Patch = quantize::Patch<Src, kVectors, 1, cfg::kTileCols, kInterleaved ? kPatchRows : 1>;
using Input = cfg::Input<Patch>;
using Output = quantize::RowOutput<Patch>;
using Bias = quantize::ColumnSums<Patch, cfg::kTileCols>;
using Stage = quantize::ColumnStage<Src, cfg::kTransposed ? kVectors : quantize::kStagedRows,
                                    cfg::kTileRows, cfg::kTileCols, cfg::kThreads>;

constexpr int kBlocksAcross = cfg::kTileCols < kBlock ? 1 : cfg::kTileCols / kBlock;
constexpr int kBlocksDown = cfg::kTileRows / kBlock;

// Columns' maxima are of a warp, or, where they are words, of as many lanes as hold the same rows.
constexpr bool kWordTops = Src::kElementsAWord == 1;
constexpr int kColumnParts = kWordTops ? kPatchRows : kWarps;
constexpr int kBlockParts = kBlock / (cfg::kTileRows / kColumnParts);  // of a block

// What the warps tell each other of amax.
struct Maxima {
  u32 squares[kSquares ? kWarps : 1][kBlocksAcross];
  Src::Tops columns[kStrips && cfg::kTransposed ? kColumnParts : 1][kLanes];
};
struct Shared {
  union {
    Maxima maxima;
    Stage stage;
  };
  float encodes[kStrips && cfg::kTransposed ? kBlocksDown : 1][cfg::kTileCols];
  quantize::Tile origin;  // first row and column of the tile
};
// Squares of fp32: where the tile lies is not kept beside 32 words of x, but found again behind the
// barrier that their maxima need anyway.
constexpr bool kAsksForPlace = kSquares && Src::kElementsAWord == 1 && !Src::kMadeAnew;
struct SharedMaxima {  // without a transposed output nothing is staged
  Maxima maxima;
};

// Where this thread's patch lies in the tile.
struct Place {
  int lane, warp, patch_row, row, column, block_down, block_across;

  explicit __device__ __forceinline__ Place(int thread)
      : lane(thread % 32),
        warp(thread / 32),
        patch_row(thread / kLanes),
        row(kInterleaved ? patch_row : patch_row * kVectors),
        column(thread % kLanes * Src::kElements),
        block_down(kInterleaved ? 0 : row / kBlock),
        block_across(column / kBlock) {}
};

__device__ __forceinline__ float encode_of(u32 magnitude) {
  return Rule::encode(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}
__device__ __forceinline__ i64 blocks_of(i64 extent) { return (extent + kBlock - 1) / kBlock; }

// Scales that leave by whole sectors: of runs along the rows, and along the columns.
using Words = quantize::ScaleWords<cfg::kOrdersScales>;
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

// ---- BxB ----------------------------------------------------------------------------------------

// The warp's maximum of each block it touches.
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

// After a barrier: the scale of the thread's block, in all its threads.
template <typename Memory>
__device__ __forceinline__ float square_encode(const Memory& shared, const Place& at) {
  constexpr int kBlockWarps = kInterleaved ? kWarps : kBlock / kWarpRows;  // that share a block
  const int first = kInterleaved ? 0 : at.block_down * kBlockWarps;
  u32 top = 0;
#pragma unroll
  for (int w = 0; w < kBlockWarps; ++w) {
    top = reduce::max(top, shared.maxima.squares[first + w][at.block_across]);
  }
  return encode_of(top);
}

// One thread of a block stores its scale.
__device__ __forceinline__ void store_square(const View& args, const Patch& patch, const Place& at,
                                             float encode) {
  const bool writer = at.row % kBlock == 0 && (kSharers == 1 ? at.column : patch.col) % kBlock == 0;
  if (writer && patch.row < args.rows && patch.col < args.cols) {
    const i64 down = blocks_of(quantize::scale_rows(args)), across = blocks_of(args.cols);
    const i64 i = (patch.row - quantize::scale_origin(args)) / kBlock, j = patch.col / kBlock;
    if constexpr (cfg::kRowwise) {
      Runs{args.scale, down, across, args.scale_ld}.store(i, j, encode);
    }
    if constexpr (cfg::kTransposed) {
      Runs{args.scale_transposed, across, down, args.scale_ld_transposed}.store(j, i, encode);
    }
  }
}

// ---- 1xB, along the rows ------------------------------------------------------------------------

// The scales of the patch's rows. 1x128: each lane of a block keeps those of the rows it owns, and
// hands them round by shuffles; 1x32: every lane derives all, which are exponents and cost little.
struct RowStrips {
  static constexpr int kAlong = kBlock / Src::kElements;  // lanes of a block
  static constexpr int kAcross = kLanes;                  // of the tile's part of 128 columns
  float kept[kShort ? kVectors : 1];                      // encode scales

  // Takes the maxima of the rows over the lane's own elements; stores the scales, or keeps them in
  // `words`, where they leave by sectors.
  __device__ __forceinline__ void find(const View& args, const Patch& patch, const Place& at,
                                       u32 (&magnitudes)[kVectors], Words& words) {
    const u32 lane = static_cast<u32>(at.lane);
    const i64 block = patch.col / kBlock, blocks = blocks_of(args.cols);
    const i64 rows = quantize::scale_rows(args);
    const i64 first = patch.row - quantize::scale_origin(args);
    if constexpr (kShort) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        kept[i] = encode_of(reduce::lanes_max<kAlong>(magnitudes[i]));
      }
      if (lane % kAlong != 0 || block >= blocks) return;
      if constexpr (cfg::kOrdersScales) {
        if (row_scales(args).holds(patch.row - at.row, (patch.col - at.column) / kBlock)) {
#pragma unroll
          for (int i = 0; i < kVectors; ++i) {
            words.scale[4 * (at.row + i) + at.block_across] =
                static_cast<u8>(Rule::decode_exponent(kept[i]));
          }
          return;
        }
      }
      Runs{args.scale, rows, blocks, args.scale_ld}.store_down(first, block, patch.rows, kept);
    } else {
      const Runs scales{args.scale, blocks, rows, args.scale_ld};
      const float encode = encode_of(reduce::scatter_max<kVectors, kAcross>(magnitudes, lane));
      const int owned = reduce::owned_index<kVectors, kAcross>(lane);
      const int owner = reduce::owner_lane<kVectors, kAcross>(lane, owned);
      const bool first_sharer = kSharers == 1 || patch.col % kBlock < cfg::kTileCols;
      if (static_cast<int>(lane) == owner && owned < patch.rows && block < blocks && first_sharer) {
        scales.store(block, first + owned, encode);
      }
      kept[0] = encode;
    }
  }

  // Row i's encode scale. All lanes, for every i.
  __device__ __forceinline__ float encode(u32 lane, int i) const {
    if constexpr (kShort) {
      return kept[i];
    } else {
      const int owner = reduce::owner_lane<kVectors, kAcross>(lane, i);
      return __shfl_sync(0xffffffffu, kept[0], owner);
    }
  }
};

// ---- 1xB, along the columns ---------------------------------------------------------------------

// The thread's maxima of its columns, but for the signs.
__device__ __forceinline__ Src::Tops column_maxima(const Src::Held (&x)[kVectors]) {
  Src::Tops top = quantize::tops_of<Src>(x[0]);
#pragma unroll
  for (int i = 1; i < kVectors; ++i) quantize::raise_tops<Src>(top, x[i]);
  return top;
}

// Of codes: the thread's maxima of its columns and, where they are wanted, of its rows, from values
// that are made once for both. Drops infinities and NaNs, and begins again after that: a loop, so
// that the fast path's instructions serve the slow one.
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

// The warp's, from its threads'; words are not worth the shuffles.
template <typename Memory>
__device__ __forceinline__ void share_columns(Memory& shared, const Place& at, Src::Tops top) {
  if constexpr (kWordTops) {
    shared.maxima.columns[at.patch_row][at.lane % kLanes] = quantize::magnitudes_of<Src>(top);
  } else {
    top = quantize::over_rows<Src, kLanes>(top);
    if (at.lane < kLanes) shared.maxima.columns[at.warp][at.lane] = top;
  }
}

// After a barrier: a thread a column derives and stores its scales, and leaves them in `encodes`.
// The tile begins at row0 of its group's.
template <typename Memory>
__device__ __forceinline__ void find_columns(const View& args, Memory& shared, Words& words,
                                             i64 row0, i64 col0) {
  const int column = static_cast<int>(threadIdx.x);
  if (column >= cfg::kTileCols) return;
  const i64 before = quantize::start_column(args) / kBlock;
  const i64 blocks = before + blocks_of(args.rows - quantize::first_row(args));
  const i64 col = col0 + column, first = before + row0 / kBlock;
  const Runs scales = kShort
                          ? Runs{args.scale_transposed, args.cols, blocks, args.scale_ld_transposed}
                          : Runs{args.scale_transposed, quantize::is_last(args) ? blocks : 0,
                                 args.cols, args.scale_ld_transposed};
  float encode[kBlocksDown];
#pragma unroll
  for (int b = 0; b < kBlocksDown; ++b) {
    encode[b] = encode_of(
        quantize::column_top<Src, kBlockParts>(shared.maxima.columns + b * kBlockParts, column));
    shared.encodes[b][column] = encode[b];
  }
  if constexpr (cfg::kOrdersScales) {
    if (column_scales(args).holds(col0, first)) {
      u32 word = 0;
#pragma unroll
      for (int b = 0; b < kBlocksDown; ++b) word |= Rule::decode_exponent(encode[b]) << 8 * b;
      words.of_run[column] = word;
      return;
    }
  }
  if (col >= args.cols) return;
  const int count = quantize::clamp_count(blocks - first, kBlocksDown);
  if constexpr (kShort) {
    scales.store_along(col, first, count, encode);
  } else {
    scales.store_down(first, col, count, encode);
  }
}

// After a barrier: a warp each puts the words of the rows and of the columns.
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

// ---- per row: another kernel's maxima -----------------------------------------------------------

// The tile's encode scales: of its rows, then of its columns.
constexpr int kLines = cfg::kTileRows + (cfg::kTransposed ? cfg::kTileCols : 0);
struct LineEncodes {
  float of[kPerRow ? kLines : 1];
};

// A thread a line, or two; before a barrier. The first tiles along rows and columns store them.
__device__ __forceinline__ void find_lines(const quantize::Args& args, LineEncodes& lines, i64 row0,
                                           i64 col0) {
#pragma unroll
  for (int first = 0; first < kLines; first += cfg::kThreads) {
    const int line = first + static_cast<int>(threadIdx.x);
    if (kLines % cfg::kThreads != 0 && line >= kLines) break;
    const bool of_row = line < cfg::kTileRows;
    const i64 at = of_row ? row0 + line : col0 + line - cfg::kTileRows;
    const i64 count = of_row ? args.rows : args.cols;
    float encode = 1.0f;
    if (at < count) {
      encode = encode_of(memory::glance_4(args.maxima + (of_row ? at : args.rows + at)));
      if constexpr (cfg::kRowwise) {
        if (of_row && col0 == 0) {
          Runs{args.scale, 1, args.rows, args.scale_ld}.store(0, at, encode);
        }
      }
      if constexpr (cfg::kTransposed) {
        if (!of_row && row0 == 0) {
          Runs{args.scale_transposed, 1, args.cols, args.scale_ld_transposed}.store(0, at, encode);
        }
      }
    }
    lines.of[line] = encode;
  }
}

// The thread's codes of kPutColumns of its columns go to the stage. `one`: their scale, if they
// share it.
constexpr int kPutColumns = Src::kMadeAnew ? Src::kElements / 2 : Src::kElements;
template <int kFirst, typename Memory>
__device__ __forceinline__ void put_columns(Memory& shared, const LineEncodes& lines,
                                            const Place& at, const Src::Held (&x)[kVectors],
                                            float one) {
  float encodes[kPutColumns];
#pragma unroll
  for (int j = 0; j < kPutColumns; ++j) {
    if constexpr (kPerRow) encodes[j] = lines.of[cfg::kTileRows + at.column + kFirst + j];
    if constexpr (kStrips) encodes[j] = shared.encodes[at.block_down][at.column + kFirst + j];
    if constexpr (!kStrips && !kPerRow) encodes[j] = one;
  }
  shared.stage.template put<cfg::kTargetType, Patch, kFirst>(at.patch_row, at.column, x, encodes);
}

// False, which the assembler does not know: what lies behind such a branch it does not begin with
// before it. Without one it begins with values of a thread's second half of columns before those of
// the first are codes, and spills.
__device__ __forceinline__ bool never(const View& args) { return args.cols == 0; }

// Where the tile begins, and where the thread's patch of it lies: as they were, or found again.
template <typename Memory>
__device__ __forceinline__ quantize::Tile origin_of(const Memory& shared,
                                                    const quantize::Tile& origin,
                                                    const Patch& patch, const Place& at) {
  if constexpr (cfg::kHalvesTogether) return origin;
  if constexpr (kAsksForPlace) return shared.origin;
  return {patch.row - at.row, patch.col - at.column};
}
template <typename Memory>
__device__ __forceinline__ Patch place_of(const View& args, const Memory& shared,
                                          const quantize::Tile& origin, const Patch& patch,
                                          const Place& at) {
  if constexpr (!cfg::kHalvesTogether && !kAsksForPlace) return patch;
  const quantize::Tile tile = origin_of(shared, origin, patch, at);
  return {args, tile.row + at.row, tile.col + at.column};
}

// What a thread reads of the tiles that share the scales of its own: as many vectors of each.
struct Beside {
  static constexpr int kTiles = kSharers - 1;
  Src::Held x[kTiles > 0 ? kTiles : 1][kVectors];

  __device__ __forceinline__ void load(const View& args, const Patch& patch) {
    if constexpr (kSharers > 1) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const i64 in_block = (patch.col + (i + 1) * cfg::kTileCols) % kBlock;
        const Patch other(args, patch.row, patch.col - patch.col % kBlock + in_block);
        Input(args, other).load(other, x[i]);
      }
    }
  }
  // Raises the maxima of the rows to theirs. Infinities and NaNs are counted where they are cast.
  __device__ __forceinline__ void raise(u32 (&magnitudes)[kVectors]) {
    if constexpr (kSharers > 1) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        u32 others[kVectors];
        quantize::measure<Src>(x[i], others);
#pragma unroll
        for (int k = 0; k < kVectors; ++k) magnitudes[k] = reduce::max(magnitudes[k], others[k]);
      }
    }
  }
};

// What the thread block shares.
template <typename Memory>
struct Parts {
  Memory& shared;
  LineEncodes& lines;
  Words& words_of_rows;
  Words& words_of_columns;
  Groups::template Search<cfg::kThreads>& search;
};

// The patch's values. Of both halves (`right`: the second), the right one's come from dynamic
// memory.
template <typename From>
__device__ __forceinline__ void load(const From& input, const Patch& patch, bool right,
                                     Src::Held (&x)[kVectors]) {
  if constexpr (cfg::kHalvesTogether) {
    auto* const kept = reinterpret_cast<quantize::Vector*>(dynamic_memory()) + threadIdx.x;
    input.template load_half<cfg::kThreads>(patch, right, kept, x);
  } else {
    input.load(patch, x);
  }
}

// One tile, which begins at `origin`, by all threads of the block.
template <bool kTransposed, typename Arguments, typename Memory>
__device__ __forceinline__ void work(Arguments& args, const Parts<Memory>& parts,
                                     const quantize::Tile& origin, bool first_tile, bool right) {
  constexpr bool kOnlyColumns = kTransposed && kStrips && !cfg::kRowwise;
  Place at(static_cast<int>(threadIdx.x));
  // source
  quantize::Given given = {};
  if constexpr (cfg::kDelayed) given = quantize::given_scale(args);
  Patch patch(args, origin.row + at.row, origin.col + at.column);
  Src::Held x[kVectors];
  load(Input(args, patch), patch, right, x);
  if constexpr (cfg::kHalvesTogether) {  // found again: not kept beside inputs and values
    at = Place(::hide_from_optimizer(static_cast<int>(threadIdx.x)));
  }
  Beside beside;
  beside.load(args, patch);
  if constexpr (cfg::kBiasGradient) {
    __shared__ Bias bias;
    bias.put(at.patch_row, at.column, x);
    __syncthreads();
    bias.write(args, origin.row, origin.col);
  }
  if constexpr (kTransposed) Groups::find_columns(args, parts.search);
  patch.row = hide_from_optimizer(patch.row);  // addresses are not kept beside 32 words of x
  if constexpr (kPerTensor && kAfterFirstPass) wait_for_previous_kernel();
  const u32 known = kPerTensor && !cfg::kDelayed ? quantize::known_magnitude(args) : 0;
  u32 magnitudes[kVectors];
  Src::Tops maxima;
  bool nonfinite;
  if constexpr (Src::kMadeAnew && kStrips && kTransposed) {
    nonfinite = measure_codes(x, maxima, magnitudes);
    quantize::hide_from_optimizer(x);
  } else if constexpr (kOnlyColumns) {
    maxima = column_maxima(x);
    nonfinite = Src::magnitude(maxima) >= Src::kInfinity;
    if (nonfinite) {
      quantize::drop_nonfinite<Src>(x);
      maxima = column_maxima(x);
    }
  } else {
    nonfinite = quantize::measure<Src>(x, magnitudes);
    // What is made of every word would not fit if it were kept for the columns' maxima.
    if constexpr (kTransposed) quantize::hide_from_optimizer(x);
  }
  beside.raise(magnitudes);

  // amax, scale
  float one = 1.0f;  // of the thread's whole patch, where that shares a scale
  if constexpr (kPerTensor) {
    one = cfg::kDelayed ? given.encode_scale : encode_of(known);
    if constexpr (cfg::kDelayed) quantize::record_amax<Src>(args, given, magnitudes);
    if (first_tile && threadIdx.x == 0) {
      if (!cfg::kDelayed) quantize::raise_amax<Src>(args, known);
      if constexpr (cfg::kRowwise) Rule::store(args.scale, 0, one);
      if constexpr (kTransposed) Rule::store(args.scale_transposed, 0, one);
    }
  }
  if constexpr (kPerRow) {
    wait_for_previous_kernel();
    find_lines(args, parts.lines, origin.row, origin.col);
    __syncthreads();
  }
  if constexpr (kSquares) {
    if constexpr (kTransposed && kAsksForPlace) {
      if (threadIdx.x == 0) parts.shared.origin = origin;
    }
    share_squares(parts.shared, at, magnitudes);
    __syncthreads();
    one = square_encode(parts.shared, at);
    if constexpr (!(kTransposed && kAsksForPlace)) store_square(args, patch, at, one);
  }

  // The row-wise copy leaves before the columns' maxima meet: what it needs is not kept meanwhile.
  if constexpr (cfg::kRowwise) {
    RowStrips strips;
    if constexpr (kStrips) strips.find(args, patch, at, magnitudes, parts.words_of_rows);
    const Output output(args, patch);
    output.template write<cfg::kTargetType>(patch, x, [&](int i) {
      if constexpr (kStrips) {
        return strips.encode(static_cast<u32>(at.lane), i);
      } else if constexpr (kPerRow) {
        return parts.lines.of[at.row + i * Patch::kRowStep];
      } else {
        return one;
      }
    });
    if (nonfinite) {
      quantize::count_nonfinite(
          args, output.template mark_nonfinite<cfg::kTargetType>(patch, Input(args, patch)));
    }
    // Converted and scaled again below: 64 products kept from here would not fit.
    if constexpr (kTransposed) quantize::hide_from_optimizer(x);
  }

  // The transposed copy, through shared memory.
  if constexpr (kTransposed) {
    auto& shared = parts.shared;
    if constexpr (kStrips) {
      if constexpr (!kOnlyColumns && !Src::kMadeAnew) maxima = column_maxima(x);
      share_columns(shared, at, maxima);
      __syncthreads();
      const quantize::Tile here = origin_of(shared, origin, patch, at);
      find_columns(args, shared, parts.words_of_columns, here.row - quantize::first_row(args),
                   here.col);
    }
    // Maxima have been read, encodes written.
    if constexpr (kSquares || kStrips) __syncthreads();
    const quantize::Tile tile = origin_of(shared, origin, patch, at);
    put_words(args, at, parts.words_of_rows, parts.words_of_columns, tile.row, tile.col);
    put_columns<0>(shared, parts.lines, at, x, one);
    if constexpr (Src::kMadeAnew) {
      if (never(args)) return;
      put_columns<kPutColumns>(shared, parts.lines, at, x, one);
    }
    if (nonfinite) {
      const Patch here = place_of(args, shared, origin, patch, at);
      const u32 found = shared.stage.template mark_nonfinite<cfg::kTargetType>(
          at.patch_row, at.column, here, Input(args, here));
      if (!cfg::kRowwise) quantize::count_nonfinite(args, found);
    }
    __syncthreads();
    const quantize::Tile here = origin_of(shared, origin, patch, at);
    shared.stage.write(args, here.row - quantize::first_row(args), here.col);
    if constexpr (kAsksForPlace) {
      store_square(args, place_of(args, shared, origin, patch, at), at, one);
    }
  }
}

template <bool kTransposed>
__device__ __forceinline__ void run(const quantize::Args& whole) {
  if constexpr (!kAfterFirstPass) wait_for_previous_kernel();
  if (quantize::skipped(whole)) return;
  using Memory = typename quantize::Chosen<kTransposed, Shared, SharedMaxima>::Type;
  __shared__ Memory shared;
  const i64 cols = cfg::kHalvesTogether ? whole.cols / 2 : whole.cols;
  const u64 across = static_cast<u64>(cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 down = static_cast<u64>(Groups::template slots<cfg::kTileRows>(whole));
  quantize::Tile tile = cfg::kRowsFastest ? quantize::turned(quantize::tile_at(blockIdx.x, down))
                                          : quantize::tile_at(blockIdx.x, across);
  __shared__ LineEncodes lines;
  __shared__ Words words_of_rows, words_of_columns;
  __shared__ Groups::template Search<cfg::kThreads> search;
  auto&& args = Groups::template enter_block<cfg::kTileRows, kPerTensor>(whole, tile.row, search);
  // Of a group; not to be kept in a register where there is one tensor.
  const bool first_tile = cfg::kGroupWalk == 0 ? blockIdx.x == 0 : tile.row == 0 && tile.col == 0;
  const i64 row0 = quantize::first_row(args) + tile.row * cfg::kTileRows;
  const i64 col0 = tile.col * cfg::kTileCols;
  // A group's first tile stays for its scale, also where the group is empty.
  if (cfg::kGroupWalk != 0 && row0 >= args.rows && !(kPerTensor && first_tile)) return;
  const Parts<Memory> parts{shared, lines, words_of_rows, words_of_columns, search};
  if constexpr (cfg::kHalvesTogether) {
    __shared__ quantize::Tile halves[2];
    if (threadIdx.x < 2) halves[threadIdx.x] = {row0, col0 + static_cast<int>(threadIdx.x) * cols};
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      __syncthreads();  // the left one's codes have left
      work<kTransposed>(args, parts, halves[half], first_tile, half != 0);
    }
  } else {
    work<kTransposed>(args, parts, quantize::Tile{row0, col0}, first_tile, false);
  }
}

}  // namespace tiles

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  tiles::run<cfg::kTransposed>(args);
}
