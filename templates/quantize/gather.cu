// Rows of FP8 codes copied by an index, with scales by row: rows received from several ranks, put
// into the order of groups for a GEMM.
//
//   q[r, c] = x[index[r], c],   scale of (block b, row r) = x's scale of (row index[r], block b)
//
// No code is changed. A warp takes kTileRows rows of kTileCols columns. Each lane has the index of
// a row and shares it with the others. A lane loads 16 codes at a time, all before it stores the
// first:
//
//     row 0  <- x row index[0]  | lane 0 | ... | lane 31 |  512 bytes     8 rows: 4 KB a warp in
//     row 1  <- x row index[1]  | lane 0 | ... | lane 31 |                flight
//      ...
//
// Lanes then take scales down the rows, because 8 of a block fill a sector of q's scales.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_gather_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 512
#include "quantize/default_prologue.cuh"
#endif

namespace gather {

// The codes as memory holds them.
struct Bytes {
  static constexpr int kElementBytes = 1;
  static constexpr int kElements = 16;
  static __device__ __forceinline__ u32 load(const void* p) { return memory::load_1(p); }
};

using quantize::Vector;
using Scale = quantize::DecodeScale<cfg::kGranularity, cfg::kScaleFormat>;

constexpr int kBlock = Scale::kBlock;
constexpr int kWarpCols = 32 * Bytes::kElements;     // columns of one load of a warp
constexpr int kGroups = cfg::kTileCols / kWarpCols;  // loads along a row
constexpr int kVectors = cfg::kTileRows * kGroups;   // vectors of a lane
constexpr int kWarps = cfg::kThreads / 32;
constexpr int kScales = cfg::kTileRows * (cfg::kTileCols / kBlock);

static_assert(kGroups * kWarpCols == cfg::kTileCols, "a tile is whole loads of a warp");
static_assert(cfg::kTileRows <= 32, "a lane has the index of a row");
static_assert(cfg::kThreads % 32 == 0, "a block is whole warps");

// Returns row `row`'s row of x. Others than x has are its first and its last.
__device__ __forceinline__ int row_of_x(const quantize::Args& args, i64 row) {
  const int index = static_cast<int>(memory::load_4(args.groups_at + row));
  const int last = static_cast<int>(args.groups) - 1;
  return index < 0 ? 0 : index < last ? index : last;
}

__device__ __forceinline__ int elements_at(const quantize::Args& args, i64 col) {
  return quantize::clamp_count(args.cols - col, Bytes::kElements);
}

// Stores `count` codes one by one: misaligned tensors and the last columns.
__device__ __forceinline__ void store_elements(char* p, Vector v, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    memory::store_1(p + i, v.word[0]);
    v = {{v.word[0] >> 8 | v.word[1] << 24, v.word[1] >> 8 | v.word[2] << 24,
          v.word[2] >> 8 | v.word[3] << 24, v.word[3] >> 8}};
  }
}

// Moves the scales of the tile. `from`: the lane's row of x.
__device__ __forceinline__ void move_scales(const quantize::Args& args, i64 row0, i64 col0,
                                            int rows, int from) {
  const i64 blocks = (args.cols + kBlock - 1) / kBlock;
  const quantize::ScaleRuns<Scale> out{args.scale, blocks, args.rows, args.scale_ld};
#pragma unroll
  for (int first = 0; first < kScales; first += 32) {
    const int i = first + static_cast<int>(threadIdx.x) % 32;
    const int row = i % cfg::kTileRows;
    const i64 block = col0 / kBlock + i / cfg::kTileRows;
    const i64 source = __shfl_sync(0xffffffffu, from, row);
    if (i >= kScales || row >= rows || block >= blocks) continue;
    out.store(block, row0 + row, Scale::load(args.x_scale, source * args.x_scale_ld + block));
  }
}

}  // namespace gather

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace gather;
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;
  const u64 column_tiles = static_cast<u64>(args.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 index = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const quantize::Tile tile = quantize::tile_at(index, column_tiles);
  const i64 row0 = tile.row * cfg::kTileRows, col0 = tile.col * cfg::kTileCols;
  if (row0 >= args.rows) return;  // a spare warp of the last block
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = quantize::clamp_count(args.rows - row0, cfg::kTileRows);
  const int from = lane < rows ? row_of_x(args, row0 + lane) : 0;

  const i64 col = col0 + lane * Bytes::kElements;
  const u64 bits = reinterpret_cast<u64>(args.x) | static_cast<u64>(args.ldx) |
                   reinterpret_cast<u64>(args.q) | static_cast<u64>(args.ldq);
  const bool aligned = bits % sizeof(Vector) == 0;
  const char* const x = static_cast<const char*>(args.x) + col;
  char* const q = static_cast<char*>(args.q) + row0 * args.ldq + col;
  Vector v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int row = i / kGroups, past = i % kGroups * kWarpCols;
    const char* const p = x + __shfl_sync(0xffffffffu, from, row) * args.ldx + past;
    const int count = row < rows ? elements_at(args, col + past) : 0;
    v[i] = aligned && count == Bytes::kElements ? memory::load_16(p)
                                                : quantize::gather<Bytes>(p, count);
  }
  move_scales(args, row0, col0, rows, from);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int row = i / kGroups, past = i % kGroups * kWarpCols;
    char* const p = q + row * args.ldq + past;
    const int count = row < rows ? elements_at(args, col + past) : 0;
    if (aligned && count == Bytes::kElements) {
      memory::store_16(p, v[i]);
    } else {
      store_elements(p, v[i], count);
    }
  }
}
