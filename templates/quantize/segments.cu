// Row-wise quantisation by warps: one scale per row and 128 or 32 columns (1x128, 1x32), or one for
// the tensor, whose largest magnitude tensor_amax.cu has found.
//
//   q[r, c] = fp8(x[r, c] * encode[r, c / B]),   scale = 1 / encode
//
// Tile (bf16, 1x128: 8 rows x 256 columns; one warp, no shared memory, no barrier):
//
//            |<---- 128 columns ---->|<---- 128 columns ---->|
//     row 0  | lane 0 | ... | lane 15| lane 16| ... | lane 31|   16 bytes a lane: 512 contiguous
//     bytes
//      ...   |        |     |        |        |     |        |   a warp and load, 8 loads in flight
//     row 7  |        |     |        |        |     |        |
//
// fp32: 4 elements in 16 bytes, so 32 lanes are one block and the tile is 8 x 128.
//
// Phases of a warp:
//   source  kVectors independent 16-byte loads per lane, all issued before the first is used
//   amax    8 (bf16) elements to one magnitude by packed integer maxima; then the rows' maxima are
//           reduced and scattered at once (reduce::scatter_max): 8 shuffles instead of 32, after
//           which every pair of lanes owns one row and block
//   scale   one division and one reciprocal a lane, for the row and block it owns; the owners'
//   stores of
//           8 consecutive rows are one 32-byte sector per block (scales are contiguous along rows)
//   cast    the encode scale comes back from its owner by a shuffle; fp32 multiply; two codes a cvt
//   output  8 bytes a lane: 256 contiguous bytes a warp and store
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
//   4 rows x 512 columns (1 KB a row)            0.98       0.90 / 0.90 / 0.96  (no_allocate)
//   dropped st.global.cs for the codes                   -          equal within 0.3 %  dropped
// Two warps a block (threads=64) is 0 to 1 % faster than eight.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_segments_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace segments {

using Src = quantize::Source<cfg::kSourceType>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using quantize::Vector;

constexpr bool kOneScale = cfg::kGranularity == quantize::kPerTensor;
constexpr bool kLong = cfg::kGranularity == quantize::k1x128;
constexpr int kBlock = kLong ? 128 : 32;         // elements per scale, unless one serves all
constexpr int kLanes = kBlock / Src::kElements;  // lanes that share a scale
constexpr int kLongBlock = 128;
constexpr int kLongLanes = kLongBlock / Src::kElements;
constexpr int kWarpCols = 32 * Src::kElements;       // columns of one load of a warp
constexpr int kGroups = cfg::kTileCols / kWarpCols;  // loads of a warp along a row
constexpr int kVectors = cfg::kTileRows * kGroups;   // loads of a lane
constexpr int kWarps = cfg::kThreads / 32;

static_assert(kGroups * kWarpCols == cfg::kTileCols, "a tile is whole loads of a warp");
static_assert(cfg::kThreads % 32 == 0, "a block is whole warps");

using Groups = quantize::Walk<cfg::kGroupWalk>;
using View = Groups::View;
using Patch = quantize::Patch<Src, kVectors, kGroups, kWarpCols, 1>;
using Input = cfg::Input<Patch>;
using Output = quantize::RowOutput<Patch>;

__device__ __forceinline__ float encode_of(u32 magnitude) {
  return Rule::encode(magnitude, __uint_as_float(cfg::kAmaxEpsilonBits));
}

// 1x128: the lanes of a block share out its rows; each derives and stores the scales it owns.
__device__ __forceinline__ void quantize_long(const View& args, const Patch& patch,
                                              const Output& output, const Vector (&x)[kVectors],
                                              u32 (&magnitudes)[kVectors]) {
  const u32 lane = threadIdx.x % 32;
  const float encode = encode_of(reduce::scatter_max<kVectors, kLongLanes>(magnitudes, lane));
  const int owned = reduce::owned_index<kVectors, kLongLanes>(lane);
  if (static_cast<int>(lane) == reduce::owner_lane<kVectors, kLongLanes>(lane, owned)) {
    const i64 row = patch.row + owned / kGroups;
    // Asked of the block, not of the owner's own column, which may lie beyond the last one.
    const i64 block = (patch.col + owned % kGroups * kWarpCols) / kLongBlock;
    const i64 blocks = (args.cols + kLongBlock - 1) / kLongBlock;
    if (block < blocks && row < args.rows) {
      const quantize::ScaleRuns<Rule> scales{args.scale, blocks, quantize::scale_rows(args),
                                             args.scale_ld};
      scales.store(block, row - quantize::scale_origin(args), encode);
    }
  }
  output.write<cfg::kTargetType>(patch, x, [&](int i) {
    return __shfl_sync(0xffffffffu, encode, reduce::owner_lane<kVectors, kLongLanes>(lane, i));
  });
}

// 1x32: every lane derives the scales of its own vectors, which are exponents and cost little.
__device__ __forceinline__ void quantize_short(const View& args, const Patch& patch,
                                               const Output& output, const Vector (&x)[kVectors],
                                               const u32 (&magnitudes)[kVectors]) {
  const i64 blocks = (args.cols + kBlock - 1) / kBlock;
  const quantize::ScaleRuns<Rule, cfg::kSwizzled> scales{args.scale, quantize::scale_rows(args),
                                                         blocks, args.scale_ld};
  const i64 first = patch.row - quantize::scale_origin(args);
  output.write<cfg::kTargetType>(patch, x, [&](int i) {
    const float encode = encode_of(reduce::lanes_max<kLanes>(magnitudes[i]));
    const i64 block = (patch.col + i % kGroups * kWarpCols) / kBlock;
    if (threadIdx.x % kLanes == 0 && i / kGroups < patch.rows && block < blocks) {
      scales.store(first + i / kGroups, block, encode);
    }
    return encode;
  });
}

}  // namespace segments

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args whole) {
  using namespace segments;
  if (quantize::skipped(whole)) return;
  const u64 column_tiles = static_cast<u64>(whole.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 index = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / 32;
  quantize::Tile tile = quantize::tile_at(index, column_tiles);
  if (tile.row >= Groups::slots<cfg::kTileRows>(whole)) return;  // the last block's spare warps
  auto&& args = Groups::enter<cfg::kTileRows>(whole, tile.row);
  const i64 row0 = quantize::first_row(args) + tile.row * cfg::kTileRows;
  const bool first_tile = cfg::kGroupWalk == 0 ? index == 0 : tile.row == 0 && tile.col == 0;
  // A group's first tile stays for its scale, also where the group is empty.
  if (cfg::kGroupWalk != 0 && row0 >= args.rows && !(kOneScale && first_tile)) return;

  // source
  const Patch patch(args, row0, tile.col * cfg::kTileCols + threadIdx.x % 32 * Src::kElements);
  const Input input(args, patch);
  const Output output(args, patch);
  Vector x[kVectors];
  input.load(patch, x);
  const u32 known = kOneScale && !cfg::kDelayed ? quantize::known_magnitude(args) : 0;
  u32 magnitudes[kVectors];
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);

  // amax, scale, cast, output
  if constexpr (kOneScale) {
    const float encode =
        cfg::kDelayed ? quantize::given_encode<Src>(args, magnitudes) : encode_of(known);
    if (first_tile && threadIdx.x % 32 == 0) {
      Rule::store(args.scale, 0, encode);
      if (!cfg::kDelayed) quantize::raise_amax<Src>(args, known);
    }
    output.write<cfg::kTargetType>(patch, x, [&](int) { return encode; });
  } else if constexpr (kLong) {
    quantize_long(args, patch, output, x, magnitudes);
  } else {
    quantize_short(args, patch, output, x, magnitudes);
  }
  if (nonfinite) {
    quantize::count_nonfinite(args, output.mark_nonfinite<cfg::kTargetType>(patch, input));
  }
}
