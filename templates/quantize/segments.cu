// Row-wise quantisation by warps: one scale per row and 128 or 32 columns (1x128, 1x32), or one for
// the tensor, whose largest magnitude tensor_amax.cu has found.
//
//   q[r, c] = fp8(x[r, c] * encode[r, c / B]),   scale = 1 / encode
//
// Tile (bf16, 1x128: 8 rows x 256 columns; one warp, no shared memory, no barrier):
//
//            |<---- 128 columns ---->|<---- 128 columns ---->|
//     row 0  | lane 0 | ... | lane 15| lane 16| ... | lane 31|   16 bytes a lane: a warp and
//      ...   |        |     |        |        |     |        |   load 512 contiguous bytes,
//     row 7  |        |     |        |        |     |        |   8 loads in flight
//
// fp32: 4 elements in 16 bytes, so 32 lanes are one block and the tile is 8 x 128.
//
// Phases of a warp:
//   source  kVectors independent 16-byte loads per lane, all issued before the first is used
//   amax    8 (bf16) elements to one magnitude by packed maxima; then the rows' maxima are
//           reduced and scattered at once (reduce::scatter_max): 8 shuffles instead of 32, after
//           which every pair of lanes owns one row and block
//   scale   one division and one reciprocal a lane, for the row and block it owns; the stores of 8
//           consecutive rows are one 32-byte sector a block (scales are contiguous along rows)
//   cast    the encode scale comes back from its owner by a shuffle; fp32 multiply; two codes a cvt
//   output  8 bytes a lane: 256 contiguous bytes a warp and store
//
// Values that are computed (fused.cuh) take longer than their loads. There a lane has 8 columns,
// two vectors of fp32 that touch, and a warp walks down kTileRows rows, kStepRows (4) a step:
//
//   step s    x of 4 rows from shared memory -> values -> amax -> scale -> cast -> output
//             each row's place, once read, takes the row two steps below (cp.async, 16 bytes a
//             lane, which no other lane reads: no barrier)
//
// so that 4 to 8 KB a warp are on their way without a register, whatever the warp does. Two
// expressions of the same inputs, which write the left and the right half of the columns, are
// computed together, 2 rows a step, where no scale's block is of both halves: the inputs are read
// and what the two share is computed once.
//
// What one bf16 input decides (GELU, SiLU) may come from a table in shared memory instead, 5
// instructions for 17 to 22, of which a block of 16 warps has one and an SM one block. It fills the
// table before it waits for the kernel before, and its warps go from tile to tile, the next one's
// rows on their way. A gather of 32 words meets three others in its bank: one value of four is
// computed meanwhile.
//
// Why a warp and not a thread block is the unit: it needs no barrier, its loads start as soon as a
// slot is free, and 256 columns waste little where cols is no multiple of a wider tile (7168 = 28 *
// 256). Bytes in flight on an H200: 4.3 TB/s times about 1 us of loaded latency is 33 KB an SM; 4
// blocks x 8 warps x 4 KB = 128 KB leaves room for the phases in which a warp does not load.
//
// Ladder: bf16 to e4m3, one H200, against the fastest stream of the same 2:1 mix in the same run,
// at 16384x7168 / 32768x4096 / 4096x7168:
//   version                                      predicted  measured            verdict
//   8 rows x 256 columns a warp, no_allocate     0.98       0.91 / 0.90 / 0.97  dropped
//   the same, plain ld.global.nc                 -          0.97 / 0.97 / 1.02  this file
//   4 rows x 256 columns, 12 blocks of 4 warps   0.98       0.97 / 0.96 / 1.02  a configuration
//   4 rows x 512 columns, no_allocate            0.98       0.90 / 0.90 / 0.96  dropped
//   st.global.cs for the codes                   -          equal within 0.3 %  dropped
// Two warps a block (threads=64) is 0 to 1 % faster than eight. Masked groups of 1024 rows, half of
// them there: 8 rows a warp 0.85, 32 rows in steps of 8, of fewer empty blocks, 0.92; what is there
// of 32 rows shared out 8 at a time among all warps, so that none is empty, 0.96 (predicted 0.96;
// of 16 rows 0.94, of 64 0.93).
//
// 1x32, whose scales are a byte each: a warp of 8 rows x 256 columns writes 8 bytes of 8 sectors.
// 16384x7168 / 4096x7168:
//   8 rows x 256 columns                         -          0.961 / 0.929       was this file
//   4 rows x 512, 2 rows x 512                   0.97       0.967 / -           dropped
//   2 rows x 1024 / 1 row x 1024                 0.975      0.969 / 0.977       -
//   1 row x 2048 columns                         -          0.81                dropped
//   1 row x 1024, all 32 scales in one store     0.98       0.982 / 0.967       this file
// Few rows, 128x7168, us; 1x32 / 1x128 / per tensor / its scale given:
//   1 row x 256 columns, blocks of 4 warps       -          2.66 2.68 4.50 2.50 was this file
//   1 row x 512, 2 warps                         2.6        2.64 2.63 4.44 2.46 dropped
//   1 row x 1024, 2 warps                        -          2.45 2.60 4.14 2.41 this file
//   1 row x 2048                                 -          3.73                dropped
//
// Ladder, SwiGLU and 1x128 of 16384x7168 bf16 on the same card; instructions an element and the
// share of issue slots they fill (ncu):
//   version                                     predicted  measured  instr.  issue  verdict
//   8 rows x 128 columns a warp, 4 a lane       -          0.838     35.3    80 %   was this file
//   8 columns a lane, steps of 4 rows, next     0.95       0.915     -       -      dropped
//   step's inputs in registers, 32 rows
//   the same, 16 rows: less of a tail           -          0.929     -       -      dropped
//   scales at a walking address, in place       0.95       0.937     30.5    76 %   dropped
//   one wave of tiles of as many rows as that   0.96       0.884     31.3    78 %   dropped
//   takes
//   one warp a block (96 registers, no spill)   0.95       0.902     30.5    76 %   dropped
//   two rows ahead, 80 registers, 24 warps      0.95       0.883     30.0    75 %   dropped
//   two steps ahead in shared memory            0.96       0.957     31.4    86 %   this file
//   8 / 32 rows; 12, 14 blocks; 4 warps         -          0.950 / 0.930; 0.950, 0.949; 0.949
// What was waited for was memory, not issue: 4 KB a warp in flight are too little, and registers
// for more leave too few warps.
//
// The gradient of SwiGLU, 16384x7168 (4096x7168):
//   each half by itself                         -          0.62 (0.60)              was this file
//   both halves of a warp, 16 rows              0.92       0.925 (0.78)             dropped
//   the same, 8 rows                            -          0.951 (0.87)             this file
//   4 / 32 rows; 8, 12 blocks of 64 threads     -          0.914 / 0.894; 0.95 0.95 dropped
//   the scales of 8 rows in one store (GELU     0.98       0.954                    this file:
//   0.81 as before; SwiGLU 0.955, in two later                                      steps of two
//   runs 0.950 to 0.953, without it 0.956)                                          rows alone
// GELU, 16384x7168:
//   by polynomials, 87 % of the issue slots     -          0.59                     small tensors
//   from a table, each tile from a standstill,  0.95       0.74 / 0.785 (spills)    dropped
//   16 / 32 warps an SM
//   the next tile's rows on their way, 16 / 32  0.85       0.765 / 0.783            dropped
//   rows a tile
//   3 blocks of 8 warps, each a table           -          0.80                     dropped
//   three values of four from the table         -          0.806 (4096x7168 0.70)   this file
//   two / one of four                           -          0.73 / 0.62              dropped
// SwiGLU from a table 0.91 for 0.955, its gradient 0.85 for 0.95: there memory bounds, and the many
// small blocks hide it better than one that stays.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_segments_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace segments {

using Src = quantize::Chosen<cfg::kSideBySide, quantize::Computed,
                             quantize::Source<cfg::kSourceType>>::Type;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using quantize::Vector;

constexpr bool kOneScale = cfg::kGranularity == quantize::kPerTensor;
// Then x may be loaded while that pass ends: it waited for all before itself.
constexpr bool kAfterFirstPass = kOneScale && !cfg::kDelayed;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr int kBlock = kLong ? 128 : 32;               // elements per scale, unless one serves all
constexpr int kTouching = cfg::kSideBySide ? 2 : 1;    // vectors of a lane
constexpr int kLaneCols = Src::kElements * kTouching;  // columns of them
constexpr int kLanes = kBlock / kLaneCols;             // lanes that share a scale
constexpr int kLongBlock = 128;
constexpr int kLongLanes = kLongBlock / kLaneCols;
constexpr int kWarpCols = 32 * kLaneCols;            // columns of a warp's row
constexpr int kPieces = cfg::kTileCols / kWarpCols;  // of a lane along a row, or of both halves
constexpr int kOwned = cfg::kStepRows * kPieces;     // pieces of a lane
constexpr int kGroups = kPieces * kTouching;         // vectors of a lane along a row
constexpr int kVectors = cfg::kStepRows * kGroups;   // of a lane
constexpr int kWarps = cfg::kThreads / 32;

static_assert(kPieces * kWarpCols == cfg::kTileCols, "a tile is whole rows of a warp");
static_assert(!cfg::kSideBySide || kPieces == (cfg::kOfHalves ? 2 : 1),
              "rows that stream have one piece, or one of each half");
static_assert(!cfg::kOfHalves || cfg::kSideBySide, "halves are of rows that stream");
static_assert(cfg::kTileRows % cfg::kStepRows == 0, "a tile is whole steps");
static_assert(cfg::kThreads % 32 == 0, "a block is whole warps");

using Groups = quantize::Walk<cfg::kGroupWalk>;
using View = Groups::View;
using Patch =
    quantize::Chosen<cfg::kOfHalves, quantize::PatchOfHalves<Src, kVectors>,
                     quantize::Patch<Src, kVectors, kGroups, kWarpCols, 1, kTouching>>::Type;
using Input = cfg::Input<Patch>;
using Output = quantize::RowOutput<Patch>;

__device__ __forceinline__ float encode_of(u32 magnitude) {
  return Rule::encode(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}

// Of a piece, from those of its vectors.
__device__ __forceinline__ u32 of_piece(const u32 (&magnitudes)[kVectors], int piece) {
  u32 top = magnitudes[piece * kTouching];
  if constexpr (kTouching == 2) top = reduce::max(top, magnitudes[2 * piece + 1]);
  return top;
}

// 1x128: the lanes of a block share out its pieces; each derives the scales of one, and where there
// are more lanes than pieces several derive the same. Down a tile these lie behind each other in
// one run. Where rows stream two a step, and scales are words of their own, lanes that derive the
// same keep those of a step each, so that 8 rows' leave together: a sector. A write of 8 bytes
// takes L2 as long. (Of four rows a step it saves half as many, and was slower.)
struct LongOwner {
  using Runs = quantize::ScaleRuns<Rule>;
  static constexpr int kCopies = kLongLanes / kOwned;
  static constexpr bool kGathers =
      cfg::kSideBySide && cfg::kStepRows <= 2 && Rule::kStepBytes == 4 && !Rule::kPacked;
  static constexpr int kRowsOfSector = 8;
  static constexpr int kStepsOfSector =
      kRowsOfSector / cfg::kStepRows < kCopies ? kRowsOfSector / cfg::kStepRows : kCopies;
  static constexpr int kSteps = kGathers && kStepsOfSector > 1 ? kStepsOfSector : 1;

  u32 lane = threadIdx.x % 32;
  int piece = reduce::owned_index<kOwned, kLongLanes>(lane);
  int copy = static_cast<int>(lane) % kCopies;
  char* place;  // of the next
  bool stores;
  int step = 0;  // of those that leave together
  float kept = 1.0f;

  __device__ __forceinline__ LongOwner(const View& args, const Patch& patch) {
    const Runs runs = runs_of(args);
    const i64 run = run_of(patch), first = first_of(args, patch) + copy % kSteps * cfg::kStepRows;
    place = static_cast<char*>(args.scale) +
            runs.index(run, first) * (Rule::kPacked ? 1 : Rule::kStepBytes);
    stores = copy < kSteps &&
             run < (cfg::kOfHalves && piece % kPieces == 0 ? runs.outer / 2 : runs.outer);
  }
  // The scales of the patch. `last`: of the tile.
  __device__ __forceinline__ void store(const View& args, const Patch& patch, float encode,
                                        bool last) {
    if (kSteps == 1 || copy == step) kept = encode;
    if (++step < kSteps && !last) return;
    const int rows_before = (step - 1 - copy) * cfg::kStepRows;  // the lane's, from the patch's
    // Before the patch at the tensor's end no padding follows.
    if (!stores || rows_before < 0) {
    } else if (!Rule::kPacked && patch.row + cfg::kStepRows < args.rows) {
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
  // Asked of the block, not of the owner's own column, which may lie beyond the last one.
  __device__ __forceinline__ i64 run_of(const Patch& patch) const {
    return (patch.col + patch.offset(piece % kPieces * kTouching)) / kLongBlock;
  }
  __device__ __forceinline__ i64 first_of(const View& args, const Patch& patch) const {
    return patch.row + piece / kPieces - quantize::scale_origin(args);
  }
};

__device__ __forceinline__ void quantize_long(const View& args, LongOwner& owner,
                                              const Patch& patch, const Output& output,
                                              const Vector (&x)[kVectors],
                                              const u32 (&magnitudes)[kVectors], bool last) {
  u32 tops[kOwned];
#pragma unroll
  for (int i = 0; i < kOwned; ++i) tops[i] = of_piece(magnitudes, i);
  const float encode = encode_of(reduce::scatter_max<kOwned, kLongLanes>(tops, owner.lane));
  owner.store(args, patch, encode, last);
  float given = 1.0f;
  output.write<cfg::kTargetType>(patch, x, [&](int i) {
    if (i % kTouching != 0) return given;  // its neighbour's too
    const int lane = reduce::owner_lane<kOwned, kLongLanes>(owner.lane, i / kTouching);
    given = __shfl_sync(0xffffffffu, encode, lane);
    return given;
  });
}

// 1x32: every lane derives the scales of its own pieces, which are exponents and cost little.
__device__ __forceinline__ void quantize_short(const View& args, const Patch& patch,
                                               const Output& output, const Vector (&x)[kVectors],
                                               const u32 (&magnitudes)[kVectors]) {
  const i64 blocks = (args.cols + kBlock - 1) / kBlock;
  const quantize::ScaleRuns<Rule, cfg::kSwizzled> scales{args.scale, quantize::scale_rows(args),
                                                         blocks, args.scale_ld};
  const i64 first = patch.row - quantize::scale_origin(args);
  float encode[kOwned];
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    encode[i] = encode_of(reduce::lanes_max<kLanes>(of_piece(magnitudes, i)));
  }
  // A row of as many pieces as a block has lanes: each stores one's, and all 32 bytes leave at
  // once.
  if constexpr (cfg::kStepRows == 1 && kPieces == kLanes && kTouching == 1) {
    const int piece = static_cast<int>(threadIdx.x) % kLanes;
    const i64 block = (patch.col + patch.offset(piece)) / kBlock;
    if (block < blocks && patch.rows > 0) {
      scales.store(first, block, quantize::picked(encode, piece));
    }
  } else if (threadIdx.x % kLanes == 0) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      float of_rows[cfg::kStepRows];
#pragma unroll
      for (int row = 0; row < cfg::kStepRows; ++row) of_rows[row] = encode[row * kPieces + piece];
      const i64 block = (patch.col + patch.offset(piece * kTouching)) / kBlock;
      const i64 end = cfg::kOfHalves && piece == 0 ? blocks / 2 : blocks;
      if (block < end) scales.store_down(first, block, patch.rows, of_rows);
    }
  }
  output.write<cfg::kTargetType>(patch, x, [&](int i) { return encode[i / kTouching]; });
}

// amax, scale, cast and output of a patch.
__device__ __forceinline__ void give(const View& args, const Patch& patch, const Input& input,
                                     const Output& output, LongOwner& owner, bool first_tile,
                                     const quantize::Given& given, u32 known, Vector (&x)[kVectors],
                                     bool last) {
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);
  if constexpr (kOneScale) {
    const float encode = cfg::kDelayed ? given.encode_scale : encode_of(known);
    if constexpr (cfg::kDelayed) quantize::record_amax<Src>(args, given, magnitudes);
    if (first_tile && threadIdx.x % 32 == 0) {
      Rule::store(args.scale, 0, encode);
      if (!cfg::kDelayed) quantize::raise_amax<Src>(args, known);
    }
    output.write<cfg::kTargetType>(patch, x, [&](int) { return encode; });
  } else if constexpr (kLong) {
    quantize_long(args, owner, patch, output, x, magnitudes, last);
  } else {
    quantize_short(args, patch, output, x, magnitudes);
  }
  if (nonfinite) {
    quantize::count_nonfinite(args, output.mark_nonfinite<cfg::kTargetType>(patch, input));
  }
}

// The table, where there is one, and the warp's ring behind it.
template <typename Streamed>
__device__ __forceinline__ typename Streamed::Rows rows_of_warp() {
  const u32 warp = kWarps == 1 ? 0 : threadIdx.x / 32;
  if constexpr (Streamed::kLooksUp) {
    u8* const memory = dynamic_memory();
    auto* const rings = reinterpret_cast<typename Streamed::Ring*>(memory + Streamed::kTableBytes);
    return {rings[warp], reinterpret_cast<const float*>(memory)};
  } else {
    __shared__ typename Streamed::Ring rings[kWarps];
    return {rings[warp], nullptr};
  }
}

// A tile whose values are computed, kStepRows rows a step: while those are worked on, the next two
// steps' are on their way. `patch` is its first step's; its first two steps are on their way where
// `asked`. Behind its last two come those of `next`, where there is one.
template <typename Streamed>
__device__ __forceinline__ void stream_tile(const View& args, Patch patch, bool first_tile,
                                            const quantize::Given& given, u32 known,
                                            typename Streamed::Rows& rows, bool asked, bool goes_on,
                                            const Patch& next) {
  int left = quantize::clamp_count(args.rows - patch.row, cfg::kTileRows);
  Streamed input(args, patch);
  Output output(args, patch);
  LongOwner owner(args, patch);
  // Steps of whole rows; the others' elements are loaded one by one.
  int whole = input.whole(patch, kGroups - 1) ? left / cfg::kStepRows : 0;
  if (!asked) input.start(rows, whole);
#pragma unroll 1
  while (true) {
    Vector x[kVectors];
    if (whole > 0) {
      if (goes_on && whole == 2) Streamed(args, next).go_on(rows);
      input.take(rows, whole > 2 || goes_on, x);
    } else {
      input.load_edge(patch, x);
    }
    input.tap(patch, x);
    give(args, patch, input, output, owner, first_tile, given, known, x, left <= cfg::kStepRows);
    left -= cfg::kStepRows;
    if (left <= 0) return;
    --whole;
    first_tile = false;
    patch.row += cfg::kStepRows;
    patch.rows = left < cfg::kStepRows ? left : cfg::kStepRows;
    input.row = patch.row;
    output.q += cfg::kStepRows * output.step;
  }
}

// Of a block of one warp it is known to be the same in every lane.
__device__ __forceinline__ u64 warp_index() {
  const u64 first = static_cast<u64>(blockIdx.x) * kWarps;
  return kWarps == 1 ? first : first + threadIdx.x / 32;
}

__device__ __forceinline__ i64 lane_column(i64 tile) {
  constexpr int kCols = cfg::kOfHalves ? kWarpCols : cfg::kTileCols;  // that lie together
  return tile * kCols + threadIdx.x % 32 * kLaneCols;
}

__device__ __forceinline__ quantize::Given given_of(const View& args) {
  if constexpr (cfg::kDelayed) return quantize::given_scale(args);
  return {};
}
// Waits for the first pass.
__device__ __forceinline__ u32 known_maximum(const View& args) {
  if constexpr (!kOneScale || cfg::kDelayed) return 0;
  if constexpr (kAfterFirstPass) wait_for_previous_kernel();
  return quantize::known_magnitude(args);
}

// kStepRows rows from `row` on.
template <typename Source>
__device__ __forceinline__ void give_step(const View& args, i64 row, i64 column_tile,
                                          bool first_tile, const quantize::Given& given) {
  const Patch patch(args, row, lane_column(column_tile));
  const Source input(args, patch);
  const Output output(args, patch);
  Vector x[kVectors];
  input.load(patch, x);
  const u32 known = known_maximum(args);
  LongOwner owner(args, patch);
  give(args, patch, input, output, owner, first_tile, given, known, x, true);
}

// Masked groups without a scale of their own: what is there of them is shared out, kStepRows rows
// at a time, among the warps that as many rows as could be there would take.
constexpr bool kSpread = Groups::kMasked && !kOneScale && !cfg::kSideBySide;

template <typename Source, typename Masked>
__device__ __forceinline__ void give_spread(const quantize::Args& whole,
                                            const quantize::Tile& slot) {
  const i64 slots = Masked::template slots<cfg::kTileRows>(whole);
  if (slot.row >= slots) return;  // the last block's spare warps
  typename Masked::template Tiles<cfg::kStepRows> tiles(whole);
#pragma unroll 1
  for (u32 next = static_cast<u32>(slot.row);; next += static_cast<u32>(slots)) {
    typename Masked::View args;
    u32 tile = next;
    if (!tiles.enter(whole, tile, args)) return;
    const i64 row = quantize::first_row(args) + i64{tile} * cfg::kStepRows;
    give_step<Source>(args, row, slot.col, false, {});
  }
}

// The tile of a warp.
template <typename Source>
__device__ __forceinline__ void give_tile(const quantize::Args& whole) {
  const u64 column_tiles = static_cast<u64>(whole.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 index = warp_index();
  quantize::Tile tile = quantize::tile_at(index, column_tiles);
  if constexpr (kSpread) return give_spread<Source, Groups>(whole, tile);
  if (tile.row >= Groups::slots<cfg::kTileRows>(whole)) return;  // the last block's spare warps
  auto&& args = Groups::enter<cfg::kTileRows>(whole, tile.row);
  const i64 row0 = quantize::first_row(args) + tile.row * cfg::kTileRows;
  const bool first_tile = cfg::kGroupWalk == 0 ? index == 0 : tile.row == 0 && tile.col == 0;
  // A group's first tile stays for its scale, also where the group is empty.
  if (cfg::kGroupWalk != 0 && row0 >= args.rows && !(kOneScale && first_tile)) return;
  const quantize::Given given = given_of(args);
  if constexpr (cfg::kSideBySide) {
    const Patch patch(args, row0, lane_column(tile.col));
    typename Source::Rows rows = rows_of_warp<Source>();
    stream_tile<Source>(args, patch, first_tile, given, known_maximum(args), rows, false, false,
                        patch);
  } else {
    // One step, but of masked groups, where blocks without a tile are to be few.
#pragma unroll 1
    for (int step = 0; step < cfg::kTileRows; step += cfg::kStepRows) {
      if (step > 0 && row0 + step >= args.rows) return;
      give_step<Source>(args, row0 + step, tile.col, first_tile && step == 0, given);
    }
  }
}

// Tile after tile of a warp, without a pause between them.
template <typename Source>
__device__ __forceinline__ void stream_tiles(const View& args) {
  constexpr int kSteps = cfg::kTileRows / cfg::kStepRows;
  const u64 across = static_cast<u64>(args.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 tiles = across * static_cast<u64>(Groups::slots<cfg::kTileRows>(args));
  const u64 step = u64{gridDim.x} * kWarps;
  const quantize::Given given = given_of(args);
  const u32 known = known_maximum(args);
  typename Source::Rows rows = rows_of_warp<Source>();
  const auto patch_of = [&](u64 index) {
    const quantize::Tile tile = quantize::tile_at(index, across);
    return Patch(args, tile.row * cfg::kTileRows, lane_column(tile.col));
  };
  const auto streams = [&](const Patch& patch) {
    return patch.row + cfg::kTileRows <= args.rows && Source(args, patch).whole(patch, kGroups - 1);
  };
  bool asked = false;
#pragma unroll 1
  for (u64 index = warp_index(); index < tiles; index += step) {
    const Patch patch = patch_of(index);
    const Patch next = patch_of(index + step);
    const bool goes_on = kSteps >= 2 && streams(patch) && index + step < tiles && streams(next);
    stream_tile<Source>(args, patch, index == 0, given, known, rows, asked, goes_on, next);
    asked = goes_on;
  }
}

template <typename Source>
__device__ __forceinline__ void run(const quantize::Args& whole) {
  if constexpr (Source::kLooksUp) {
    Source::template fill<cfg::kThreads>(reinterpret_cast<float*>(dynamic_memory()));
    __syncthreads();
  }
  if constexpr (!kAfterFirstPass) wait_for_previous_kernel();
  if (quantize::skipped(whole)) return;
  if constexpr (Source::kLooksUp) {
    stream_tiles<Source>(whole);
  } else {
    give_tile<Source>(whole);
  }
}

}  // namespace segments

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args whole) {
  using namespace segments;
  run<Input>(whole);
}
