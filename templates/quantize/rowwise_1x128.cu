// 1x128 row-wise quantisation: one scale per row and 128 columns.
//
//   q[r, c] = fp8(x[r, c] * encode[r, c / 128]),   scale[c / 128][r] = 1 / encode[r, c / 128]
//
// Tile (bf16: 8 rows x 256 columns; one warp, no shared memory, no barrier):
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
#define OCTILE_KERNEL_NAME octile_quantize_1x128_default
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace rowwise {

using Src = quantize::Source<cfg::kSourceType>;
using quantize::Vector;

constexpr int kBlock = 128;                          // elements per scale
constexpr int kLanes = kBlock / Src::kElements;      // lanes that share a scale
constexpr int kWarpCols = 32 * Src::kElements;       // columns of one load of a warp
constexpr int kGroups = cfg::kTileCols / kWarpCols;  // loads of a warp along a row
constexpr int kVectors = cfg::kTileRows * kGroups;   // loads of a lane
constexpr int kWarps = cfg::kThreads / 32;

static_assert(kGroups * kWarpCols == cfg::kTileCols, "a tile is whole loads of a warp");
static_assert(cfg::kThreads % 32 == 0, "a block is whole warps");

using Patch = quantize::Patch<Src, kVectors, kGroups, kWarpCols, 1>;

}  // namespace rowwise

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace rowwise;
  const u32 lane = threadIdx.x % 32;
  const u64 column_tiles = static_cast<u64>(args.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 index = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const quantize::Tile tile = quantize::tile_at(index, column_tiles);
  const i64 scale_rows = quantize::padded_scales(args.rows, args.scale_ld);
  if (tile.row * cfg::kTileRows >= scale_rows) return;  // the last block's spare warps

  // source
  const i64 row0 = tile.row * cfg::kTileRows;
  const i64 col0 = tile.col * cfg::kTileCols + lane * Src::kElements;
  const Patch patch(args, row0, col0);
  Vector x[kVectors];
  quantize::load(patch, x);

  // amax
  u32 magnitudes[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) magnitudes[i] = Src::magnitude(x[i]);
  u32 amax = reduce::scatter_max<kVectors, kLanes>(magnitudes, lane);
  // The same in all lanes: the slow path holds shuffles.
  const bool nonfinite = __any_sync(0xffffffffu, amax >= Src::kInfinity);
  if (nonfinite) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) magnitudes[i] = quantize::finite_magnitude<Src>(x[i]);
    amax = reduce::scatter_max<kVectors, kLanes>(magnitudes, lane);
  }

  // scale
  const float encode = quantize::encode_scale<Src, cfg::kTargetType, cfg::kPow2Scale>(
      amax, __uint_as_float(cfg::kAmaxEpsilonBits));
  const int owned = reduce::owned_index<kVectors, kLanes>(lane);
  if (static_cast<int>(lane) == reduce::owner_lane<kVectors, kLanes>(lane, owned)) {
    const i64 row = row0 + owned / kGroups;
    // Asked of the block, not of the owner's own column, which may lie beyond the last one.
    const i64 block = (col0 + owned % kGroups * kWarpCols) / kBlock;
    if (block * kBlock < args.cols && row < scale_rows) {
      args.scale[block * args.scale_ld + row] =
          row < args.rows ? quantize::decode_scale(encode) : 1.0f;
    }
  }

  // cast, output
  quantize::cast_and_store<cfg::kTargetType>(patch, x, [&](int i) {
    return __shfl_sync(0xffffffffu, encode, reduce::owner_lane<kVectors, kLanes>(lane, i));
  });
  if (nonfinite) quantize::mark_nonfinite<cfg::kTargetType>(patch);
}
