// 128x128 blockwise quantisation: one scale per 128 rows and 128 columns.
//
//   q[r, c] = fp8(x[r, c] * encode[r / 128, c / 128]),   scale[r / 128][c / 128] = 1 / encode
//
// Tile: one block of 128 x 128, one thread block, one read. 256 threads, bf16: a half-warp takes
// 256 contiguous bytes of a row (fp32: a warp takes 512), the 16 half-warps 16 rows, and each
// thread 8 such vectors, 16 rows apart:
//
//             |<------- 128 columns ------->|
//     row 0   | thread 0 | ...  | thread 15 |   vector 0
//     row 1   | thread 16| ...  | thread 31 |
//      ...
//     row 16  | thread 0 | ...  | thread 15 |   vector 1
//      ...
//
// Phases of a thread block:
//   source  kVectors independent 16-byte loads per thread, all issued before the first is used; the
//   tile
//           (32 KB of bf16) stays in registers
//   amax    packed integer maxima, one redux a warp, one word of shared memory a warp, one barrier,
//   one
//           redux (reduce::block_max)
//   scale   every thread computes it: cheaper than a second barrier
//   cast    fp32 multiply; two codes a cvt
//   output  8 bytes a thread: 128 contiguous bytes of a row a half-warp and store
//
// Shared memory (static): two arrays of one word per warp, the second for the slow path, so that
// neither is written again while it is read.
//
// The barrier stops a thread block until its last load is there: the bandwidth comes from the other
// blocks of the SM. 4 x 32 KB in flight against 33 KB needed (rowwise_1x128.cu).
//
// Ladder: bf16 to e4m3, one H200, against the fastest stream of the same 2:1 mix in the same run,
// at 16384x7168 / 32768x4096 / 4096x7168:
//   version                                      predicted  measured            verdict
//   256 threads, 3 blocks an SM, no_allocate     0.97       0.92 / 0.92 / 0.97  dropped
//   the same, plain ld.global.nc                 -          0.99 / 0.98 / 1.04  this file
//   256 threads, 4 blocks an SM (64 registers)   0.97       0.91 / 0.91 / 0.97  (no_allocate)
//   dropped 512 threads, 2 blocks an SM                  -          0.90 / 0.90 / 0.96
//   (no_allocate) small only 1024 threads, 1 block an SM                  -          0.59 / 0.59 /
//   0.65  (no_allocate) dropped
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_128x128_default
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

namespace blockwise {

using Src = quantize::Source<cfg::kSourceType>;
using quantize::Vector;

constexpr int kBlock = 128;                                // rows and columns per scale
constexpr int kLanes = kBlock / Src::kElements;            // threads along a row of the tile
constexpr int kRowStep = cfg::kThreads / kLanes;           // rows of one load of the thread block
constexpr int kVectors = kBlock * kLanes / cfg::kThreads;  // loads of a thread
constexpr int kWarps = cfg::kThreads / 32;

static_assert(cfg::kTileRows == kBlock && cfg::kTileCols == kBlock, "a tile is one scale block");
static_assert(kVectors * kRowStep == kBlock, "a tile is whole loads of the thread block");

using Patch = quantize::Patch<Src, kVectors, 1, kBlock, kRowStep>;

}  // namespace blockwise

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace blockwise;
  __shared__ u32 partials[2][kWarps];
  const i64 blocks_along_row = (args.cols + kBlock - 1) / kBlock;
  const quantize::Tile tile = quantize::tile_at(blockIdx.x, static_cast<u64>(blocks_along_row));

  // source
  const Patch patch(args, tile.row * kBlock + threadIdx.x / kLanes,
                    tile.col * kBlock + threadIdx.x % kLanes * Src::kElements);
  Vector x[kVectors];
  quantize::load(patch, x);

  // amax
  u32 amax = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) amax = reduce::max(amax, Src::magnitude(x[i]));
  amax = reduce::block_max<cfg::kThreads>(amax, partials[0]);
  const bool nonfinite =
      amax >= Src::kInfinity;  // the same in all threads: the slow path has a barrier
  if (nonfinite) {
    amax = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      amax = reduce::max(amax, quantize::finite_magnitude<Src>(x[i]));
    }
    amax = reduce::block_max<cfg::kThreads>(amax, partials[1]);
  }

  // scale: the thread block of the last column also writes the padding, up to a multiple of 4 or to
  // the caller's tighter stride
  const float encode = quantize::encode_scale<Src, cfg::kTargetType, cfg::kPow2Scale>(
      amax, __uint_as_float(cfg::kAmaxEpsilonBits));
  float* const scale_row = args.scale + tile.row * args.scale_ld;
  if (threadIdx.x == 0) scale_row[tile.col] = quantize::decode_scale(encode);
  if (tile.col + 1 == blocks_along_row) {
    const i64 column = tile.col + 1 + threadIdx.x;
    if (column < quantize::padded_scales(blocks_along_row, args.scale_ld)) scale_row[column] = 1.0f;
  }

  // cast, output
  quantize::cast_and_store<cfg::kTargetType>(patch, x, [&](int) { return encode; });
  if (nonfinite) quantize::mark_nonfinite<cfg::kTargetType>(patch);
}
