// Transposition of FP8 codes with square-block or per-tensor scales. Codes and scales are moved
// without rounding.
//
//   qt[c, r] = x[r, c],   scale_t of block (j, i) = scale of block (i, j)
//
// A thread block takes a tile of kTileRows x kTileCols codes. A thread holds 8 consecutive rows of
// 16 columns: 8 loads of 16 bytes, all issued before the first is used. It turns them in registers
// into 16 columns of 8 rows, by byte permutations of 4 x 4 codes, and stages each column in shared
// memory, where a column's kTileRows bytes are contiguous (columns.cuh):
//
//             |<-- 128 columns: 128 bytes a load of 8 lanes -->|
//     rows 0-7   | thread 0 | thread 1 | ...        | thread 7  |       column c: 256 contiguous
//     rows 8-15  | thread 8 | ...                   | thread 15 |  ->   bytes of qt, 16 a thread
//      ...  256 rows, 256 threads, 32 KB
//
// Beyond the end of x zeros are staged, which are the copy's padding. Three blocks an SM have 96 KB
// of loads in flight, three times what memory needs, so that a block may wait at its barrier.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_transpose_default
#define OCTILE_DEFAULT_GRANULARITY 4
#define OCTILE_DEFAULT_TILE_ROWS 256
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

namespace transpose {

// The codes as memory holds them.
struct Bytes {
  static constexpr bool kRounded = false;
  static constexpr int kElementBytes = 1;
  static constexpr int kElements = 16;
  static __device__ __forceinline__ u32 load(const void* p) { return memory::load_1(p); }
};

using quantize::Vector;
using Scale = quantize::DecodeScale<cfg::kGranularity, cfg::kScaleFormat>;

constexpr int kLanes = cfg::kTileCols / Bytes::kElements;  // threads along a row of the tile
constexpr int kVectors = quantize::kStagedRows;            // rows of a thread
constexpr int kBlock = Scale::kBlock;
constexpr int kBlocksDown = cfg::kTileRows / kBlock, kBlocksAcross = cfg::kTileCols / kBlock;

static_assert(kLanes * (cfg::kTileRows / kVectors) == cfg::kThreads, "a tile is whole patches");
static_assert(kBlocksDown * kBlock == cfg::kTileRows && kBlocksAcross * kBlock == cfg::kTileCols,
              "a tile is whole blocks");

using Patch = quantize::Patch<Bytes, kVectors, 1, cfg::kTileCols, 1>;
using Input = quantize::TensorInput<Patch>;
using Stage = quantize::ColumnStage<Bytes, kVectors, cfg::kTileRows, cfg::kTileCols, cfg::kThreads>;

// Four columns of four rows, made of four rows of four columns. The lowest byte is the first.
struct Columns {
  u32 of[4];
};
__device__ __forceinline__ Columns turned(u32 row0, u32 row1, u32 row2, u32 row3) {
  const u32 left01 = __byte_perm(row0, row1, 0x5140), left23 = __byte_perm(row2, row3, 0x5140);
  const u32 right01 = __byte_perm(row0, row1, 0x7362), right23 = __byte_perm(row2, row3, 0x7362);
  return {{__byte_perm(left01, left23, 0x5410), __byte_perm(left01, left23, 0x7632),
           __byte_perm(right01, right23, 0x5410), __byte_perm(right01, right23, 0x7632)}};
}

// Stages each column of the patch.
__device__ __forceinline__ void put(Stage& stage, int patch_row, int column,
                                    const Vector (&x)[kVectors]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const Columns upper = turned(x[0].word[w], x[1].word[w], x[2].word[w], x[3].word[w]);
    const Columns lower = turned(x[4].word[w], x[5].word[w], x[6].word[w], x[7].word[w]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      stage.at(column, 4 * w + j, patch_row) = Stage::Piece{{upper.of[j], lower.of[j]}};
    }
  }
}

// Moves the tile's scales, one for each thread.
__device__ __forceinline__ void move_scales(const quantize::Args& args, u64 block, i64 row0,
                                            i64 col0) {
  if constexpr (cfg::kGranularity == quantize::kPerTensor) {
    if (block == 0 && threadIdx.x == 0) {
      Scale::store(args.scale_transposed, 0, Scale::load(args.x_scale, 0));
    }
    return;
  }
  const int index = static_cast<int>(threadIdx.x);
  static_assert(kBlocksDown * kBlocksAcross <= cfg::kThreads, "a thread a scale");
  if (index >= kBlocksDown * kBlocksAcross) return;
  const i64 down = (args.rows + kBlock - 1) / kBlock, across = (args.cols + kBlock - 1) / kBlock;
  const i64 i = row0 / kBlock + index / kBlocksAcross, j = col0 / kBlock + index % kBlocksAcross;
  if (i >= down || j >= across) return;
  const quantize::ScaleRuns<Scale> out{args.scale_transposed, across, down,
                                       args.scale_ld_transposed};
  out.store(j, i, Scale::load(args.x_scale, Scale::index(args.x_scale_ld, i * kBlock, j * kBlock)));
}

}  // namespace transpose

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ cfg::Arguments all) {
  using namespace transpose;
  wait_and_let_next_start();
  const quantize::Entered<cfg::Arguments> at(all);
  const quantize::Args& args = at.args;
  if (quantize::skipped(args)) return;
  __shared__ Stage stage;
  const u64 across = static_cast<u64>(args.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 down = static_cast<u64>(args.rows + cfg::kTileRows - 1) / cfg::kTileRows;
  const quantize::Tile tile = cfg::kRowsFastest
                                  ? quantize::turned(quantize::tile_at(at.block, down))
                                  : quantize::tile_at(at.block, across);
  const i64 row0 = tile.row * cfg::kTileRows, col0 = tile.col * cfg::kTileCols;
  const int patch_row = static_cast<int>(threadIdx.x) / kLanes;
  const int column = static_cast<int>(threadIdx.x) % kLanes * Bytes::kElements;

  const Patch patch(args, row0 + patch_row * kVectors, col0 + column);
  Vector x[kVectors];
  Input(args, patch).load(patch, x);
  move_scales(args, at.block, row0, col0);
  put(stage, patch_row, column, x);
  __syncthreads();
  stage.write(args, row0, col0);
}
