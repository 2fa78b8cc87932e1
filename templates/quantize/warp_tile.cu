// Row-wise quantisation by warps, each with a tile of its own: one scale for each row and 128 or 32
// columns (1x128, 1x32), or one for the tensor, whose maximum tensor_amax.cu found before.
//
//   q[r, c] = fp8(x[r, c] * encode scale[r, c / B]),   scale = 1 / encode scale
//
// Tile of a warp (bf16, 1x128: 8 rows x 256 columns; no shared memory, no barrier):
//
//            |<---- 128 columns ---->|<---- 128 columns ---->|
//     row 0  | lane 0 | ... | lane 15| lane 16| ... | lane 31|   16 bytes a lane: a warp and
//      ...   |        |     |        |        |     |        |   load 512 contiguous bytes,
//     row 7  |        |     |        |        |     |        |   8 loads in flight
//
// A vector of fp32 has 4 elements, so 32 lanes are one block and the tile is 8 x 128.
//
// Steps of a warp:
//   source  every lane issues its kVectors loads of 16 bytes before it uses the first
//   amax    packed maxima turn the elements of a vector into one magnitude. The rows' maxima are
//           reduced and scattered at once (reduce::scatter_max): 8 shuffles instead of 32, after
//           which every pair of lanes owns one row and block
//   scale   one division and one reciprocal for each lane's row and block. 8 consecutive rows store
//           a sector of 32 bytes, because scales are contiguous along the rows
//   cast    a shuffle brings the encode scale from its owner; fp32 multiply; two codes a cvt
//   output  8 bytes a lane: 256 contiguous bytes a warp and store
//
// Computed values (fused.cuh) take longer than their loads. There a lane has 8 columns, two vectors
// of fp32 that touch, and a warp walks down its tile kStepRows rows at a time:
//
//   step s    x of 4 rows from shared memory -> values -> amax -> scale -> cast -> output
//             as soon as a row's place is read, cp.async fills it with the row two steps below
//
// A tile of one row comes straight to the registers instead.
//
// Two expressions of the same inputs, which write the left and the right half of the columns, are
// computed together, 2 rows a step, if no scale's block spans both halves. Inputs are then read
// once, and what the two share is computed once.
//
// A function of one bf16 input (GELU, SiLU) may come from a table (cfg::kTableOffset in dynamic
// shared memory), which replaces 17 to 22 instructions by 5. An SM then has one block of 16 warps,
// which fills the table before it waits for the kernel before and goes on from tile to tile. Only
// three values of four are looked up: a gather of 32 words meets three others in its bank, and the
// fourth value is computed meanwhile.
//
// Shared memory: the warps' rings of rows on their way, two steps each (static, or dynamic from
// cfg::kRingsOffset on behind a table). A lane reads only its own copies, so no barrier is needed.
//
// Why a warp is the unit and not a thread block: it needs no barrier, its loads start as soon as a
// slot is free, and 256 columns waste little if cols is not a multiple of a wider tile (7168 = 28 *
// 256). An H200 needs 33 KB in flight for each SM (4.3 TB/s times about 1 us of loaded latency); 4
// blocks of 8 warps with 4 KB each have 128 KB, which leaves room for the steps in which a warp
// loads nothing. docs/experiments/quantize.md lists what was tried and measured.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_warp_tile_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/warp_tile_scales.cuh"
#endif

namespace warp_tile {

// Returns the warp's ring and the table, if there is one. The ring then lies behind the table in
// dynamic shared memory.
template <typename Streamed>
__device__ __forceinline__ typename Streamed::Rows rows_of_warp() {
  const u32 warp = kWarps == 1 ? 0 : threadIdx.x / 32;
  if constexpr (Streamed::kLooksUp) {
    u8* const memory = dynamic_memory();
    auto* const rings = reinterpret_cast<typename Streamed::Ring*>(memory + cfg::kRingsOffset);
    return {rings[warp], reinterpret_cast<const float*>(memory + cfg::kTableOffset)};
  } else {
    __shared__ typename Streamed::Ring rings[kWarps];
    return {rings[warp], nullptr};
  }
}

// Quantises a tile of computed values, kStepRows rows a step, while the rows of the next two steps
// are on their way. `patch` is the first step's. `asked`: the first two steps were requested
// before. `goes_on`: the last two steps request those of the tile that begins at `next`.
template <typename Streamed>
__device__ __forceinline__ void stream_tile(const View& args, Patch patch, bool first_tile,
                                            const quantize::Given& given, u32 known,
                                            typename Streamed::Rows& rows, bool asked, bool goes_on,
                                            const Patch& next) {
  int left = quantize::clamp_count(args.rows - patch.row, cfg::kTileRows);
  Streamed input(args, patch);
  Output output(args, patch);
  LongOwner owner(args, patch);
  // The steps of whole rows; the elements of the others are loaded one by one.
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

// Returns the warp's number. If a block has one warp, the compiler knows that its lanes agree.
__device__ __forceinline__ u64 warp_index() {
  const u64 first = static_cast<u64>(blockIdx.x) * kWarps;
  return kWarps == 1 ? first : first + threadIdx.x / 32;
}

__device__ __forceinline__ i64 lane_column(i64 tile) {
  constexpr int kCols = cfg::kOfHalves ? kWarpCols : cfg::kTileCols;  // columns that lie together
  return tile * kCols + threadIdx.x % 32 * kLaneCols;
}

__device__ __forceinline__ quantize::Given given_of(const View& args) {
  if constexpr (cfg::kDelayed) return quantize::given_scale(args);
  return {};
}
// Returns the maximum that the first pass found, after waiting for it; 0 if there is none.
__device__ __forceinline__ u32 known_maximum(const View& args) {
  if constexpr (!kOneScale || cfg::kDelayed) return 0;
  if constexpr (kAfterFirstPass) wait_and_let_next_start();
  return quantize::known_magnitude(args);
}

// Quantises a patch that is a step by itself.
template <typename Source>
__device__ __forceinline__ void give_patch(const View& args, const Patch& patch,
                                           const Source& input, const Output& output,
                                           bool first_tile, const quantize::Given& given) {
  Vector x[kVectors];
  input.load(patch, x);
  const u32 known = known_maximum(args);
  LongOwner owner(args, patch);
  give(args, patch, input, output, owner, first_tile, given, known, x, true);
}

// Quantises kStepRows rows from `row` on.
template <typename Source>
__device__ __forceinline__ void give_step(const View& args, i64 row, i64 column_tile,
                                          bool first_tile, const quantize::Given& given) {
  const Patch patch(args, row, lane_column(column_tile));
  give_patch(args, patch, Source(args, patch), Output(args, patch), first_tile, given);
}

// Returns the place of the warp's tile, in tiles.
__device__ __forceinline__ quantize::Tile tile_of_warp(const quantize::Args& whole) {
  const u64 across = static_cast<u64>(whole.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  return quantize::tile_at(warp_index(), across);
}

// Quantises a row of computed values. It holds the wait for the kernels before.
template <typename Source>
__device__ __forceinline__ void compute_row(const View& args, const Patch& patch,
                                            const Source& input, const Output& output,
                                            bool first_tile) {
  const typename Source::Places places = input.places();
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;
  const quantize::Given given = given_of(args);
  Vector x[kVectors];
  input.load_row(patch, places, x);
  input.tap(patch, x);
  LongOwner owner(args, patch);
  give(args, patch, input, output, owner, first_tile, given, 0, x, true);
}

// Quantises the warp's tile, which is one step. It holds the wait for the kernels before.
template <typename Source, typename Arguments>
__device__ __forceinline__ void give_placed(const Arguments& args) {
  static_assert(Source::kComputed || cfg::kStepRows == cfg::kTileRows,
                "a tile of the tensor itself is one step");
  const quantize::Tile tile = quantize::settled(tile_of_warp(args));
  if (tile.row * cfg::kTileRows >= args.rows) return;  // a spare warp of the last block
  const Patch patch(args, tile.row * cfg::kTileRows, lane_column(tile.col));
  Source input(args, patch);
  Output output(args, patch);
  output.settle();
  const bool first_tile = tile.row == 0 && tile.col == 0;
  if constexpr (Source::kComputed) {
    compute_row(args, patch, input, output, first_tile);
  } else {
    input.settle();
    if constexpr (!kAfterFirstPass) wait_and_let_next_start();
    if (quantize::skipped(args)) return;
    const quantize::Given given = given_of(args);
    give_patch(args, patch, input, output, first_tile, given);
  }
}

// Masked groups whose scales are not one for each group: their existing rows are shared out,
// kStepRows at a time, among as many warps as would serve all rows that could exist.
constexpr bool kSpread = Groups::kMasked && !kOneScale && !cfg::kSideBySide;

template <typename Source, typename Masked>
__device__ __forceinline__ void give_spread(const quantize::Args& whole,
                                            const quantize::Tile& slot) {
  const i64 slots = Masked::template slots<cfg::kTileRows>(whole);
  if (slot.row >= slots) return;  // a spare warp of the last block
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

// Quantises the warp's tile.
template <typename Source>
__device__ __forceinline__ void give_tile(const quantize::Args& whole) {
  quantize::Tile tile = tile_of_warp(whole);
  if constexpr (kSpread) return give_spread<Source, Groups>(whole, tile);
  if (tile.row >= Groups::slots<cfg::kTileRows>(whole)) return;  // a spare warp of the last block
  auto&& args = Groups::enter<cfg::kTileRows>(whole, tile.row);
  const i64 row0 = quantize::first_row(args) + tile.row * cfg::kTileRows;
  const bool first_tile = tile.row == 0 && tile.col == 0;
  // The first tile of an empty group remains, because it stores the group's scale.
  if (cfg::kGroupWalk != 0 && row0 >= args.rows && !(kOneScale && first_tile)) return;
  const quantize::Given given = given_of(args);
  if constexpr (cfg::kSideBySide) {
    const Patch patch(args, row0, lane_column(tile.col));
    typename Source::Rows rows = rows_of_warp<Source>();
    stream_tile<Source>(args, patch, first_tile, given, known_maximum(args), rows, false, false,
                        patch);
  } else {
    // One step, unless groups are masked: blocks without a tile must be few there.
#pragma unroll 1
    for (int step = 0; step < cfg::kTileRows; step += cfg::kStepRows) {
      if (step > 0 && row0 + step >= args.rows) return;
      give_step<Source>(args, row0 + step, tile.col, first_tile && step == 0, given);
    }
  }
}

// Quantises one tile after another; the rows of the next one are requested meanwhile.
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
    Source::Table::template fill<cfg::kThreads>(
        reinterpret_cast<float*>(dynamic_memory() + cfg::kTableOffset));
    __syncthreads();
  }
  if constexpr (kPlacedBeforeWait) return give_placed<Source>(whole);
  if constexpr (!kAfterFirstPass) wait_and_let_next_start();
  if (quantize::skipped(whole)) return;
  if constexpr (Source::kLooksUp) {
    stream_tiles<Source>(whole);
  } else {
    give_tile<Source>(whole);
  }
}

}  // namespace warp_tile

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace warp_tile;
  const quantize::Entered<cfg::Arguments> at(all);
  run<Input>(at.args);
}
