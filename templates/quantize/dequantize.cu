// Dequantisation by warps: codes times their scales, in bf16, fp16 or fp32.
//
//   q[r, c] = type(fp32(x[r, c] * scale of (r, c)))
//
// Two roundings, both to nearest even. If a code or a scale is NaN, the result is the NaN whose
// bits below the sign are all set. A warp takes kTileRows rows of kTileCols columns. A lane's
// vector has the codes that become 16 bytes: 8 (4 for fp32). A warp therefore stores 512 contiguous
// bytes of a row, in full sectors, and loads 256 (128). A lane has kVectors loads in registers and
// as many scales; the lanes of a block read the same scale:
//
//             |<----- kTileCols ---->|
//     row 0   | lane 0 | ... | lane 31 |  vector 0     8 rows x 256 codes: 2 KB a warp in flight,
//     row 1   | lane 0 | ... | lane 31 |  vector 1     128 KB an SM, where a third of the traffic
//      ...                                             is read and 11 KB would do
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_dequantize_default
#define OCTILE_DEFAULT_GRANULARITY 3
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#define OCTILE_DEFAULT_INPUT quantize::ScaledCodes<P, 1, 3, 1>  // e4m3:1x128:f32
#include "quantize/default_prologue.cuh"
#endif

namespace dequantize {

using Out = quantize::Source<cfg::kWidenedType>;
using quantize::Vector;

constexpr int kWarpCols = 32 * Out::kElements;       // columns of one store of a warp
constexpr int kGroups = cfg::kTileCols / kWarpCols;  // stores along a row
constexpr int kVectors = cfg::kTileRows * kGroups;   // vectors of a lane
constexpr int kWarps = cfg::kThreads / 32;

static_assert(kGroups * kWarpCols == cfg::kTileCols, "a tile is whole stores of a warp");
static_assert(cfg::kThreads % 32 == 0, "a block is whole warps");

using Patch = quantize::Patch<Out, kVectors, kGroups, kWarpCols, 1>;
using Input = cfg::Input<Patch>;

__device__ __forceinline__ u32 fp32_bits(float value) {
  const u32 bits = __float_as_uint(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? quantize::kNan : bits;
}

// Returns 16 bytes of the output.
__device__ __forceinline__ Vector converted(const float (&value)[Out::kElements]) {
  Vector v;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (cfg::kWidenedType == quantize::kBF16) {
      v.word[w] = cast::to_bf16x2(value[2 * w + 1], value[2 * w]);
    } else if constexpr (cfg::kWidenedType == quantize::kFP16) {
      v.word[w] = cast::to_fp16x2(value[2 * w + 1], value[2 * w]);
    } else {
      v.word[w] = fp32_bits(value[w]);
    }
  }
  return v;
}

// Stores `count` elements one by one: misaligned tensors and the last columns.
__device__ __forceinline__ void store_elements(char* p, Vector v, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if constexpr (Out::kElementBytes == 4) {
      memory::store_4(p, v.word[0]);
      v = {{v.word[1], v.word[2], v.word[3], 0}};
    } else {
      memory::store_2(p, v.word[0]);
      v = {{v.word[0] >> 16 | v.word[1] << 16, v.word[1] >> 16 | v.word[2] << 16,
            v.word[2] >> 16 | v.word[3] << 16, v.word[3] >> 16}};
    }
    p += Out::kElementBytes;
  }
}

}  // namespace dequantize

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  using namespace dequantize;
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;
  const u64 column_tiles = static_cast<u64>(args.cols + cfg::kTileCols - 1) / cfg::kTileCols;
  const u64 index = static_cast<u64>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const quantize::Tile tile = quantize::tile_at(index, column_tiles);
  if (tile.row * cfg::kTileRows >= args.rows) return;  // a spare warp of the last block

  const Patch patch(args, tile.row * cfg::kTileRows,
                    tile.col * cfg::kTileCols + threadIdx.x % 32 * Out::kElements);
  Input::Word codes[kVectors];
  float scale[kVectors];
  Input(args, patch).load(patch, codes, scale);

  const i64 stride = args.ldq * Out::kElementBytes;
  const bool aligned =
      (reinterpret_cast<u64>(args.q) | static_cast<u64>(stride)) % sizeof(Vector) == 0;
  char* p = static_cast<char*>(args.q) + patch.row * stride + patch.col * Out::kElementBytes;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int row = i / kGroups, g = i % kGroups;
    float value[Out::kElements];
    Input::widen(codes[i], scale[i], value);
    const Vector v = converted(value);
    char* const at = p + g * kWarpCols * Out::kElementBytes;
    if (row < patch.rows) {
      if (aligned && patch.whole(g)) {
        memory::store_16(at, v);
      } else {
        store_elements(at, v, patch.elements(g));
      }
    }
    if (g == kGroups - 1) p += stride;
  }
}
