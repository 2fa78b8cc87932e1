// Stands for the text that the emitter puts before a quantise template, so that the file parses and
// lints by itself: bf16 to E4M3 with fp32 scales. The template names its kernel, its granularity
// and its tile.
#pragma once
#include "lib/arithmetic.cuh"
#include "lib/cast.cuh"
#include "lib/math.cuh"
#include "lib/memory.cuh"
#include "lib/normal.cuh"
#include "lib/reduce.cuh"
#include "lib/types.cuh"
#include "quantize/bias.cuh"
#include "quantize/codes.cuh"
#include "quantize/columns.cuh"
#include "quantize/elements.cuh"
#include "quantize/first_pass.cuh"
#include "quantize/fused.cuh"
#include "quantize/groups.cuh"
#include "quantize/layer_norm.cuh"
#include "quantize/norm.cuh"
#include "quantize/ordered_scales.cuh"
#include "quantize/patch.cuh"
#include "quantize/pieces.cuh"
#include "quantize/range.cuh"
#include "quantize/scale.cuh"
#include "quantize/scaled.cuh"

#ifndef OCTILE_DEFAULT_GROUP_WALK
#define OCTILE_DEFAULT_GROUP_WALK 0
#endif

namespace cfg {
using Arguments = quantize::Args;
constexpr int kSourceType = 3;   // octile_dtype: bf16
constexpr int kWidenedType = 3;  // octile_dtype: bf16
constexpr int kTargetType = 1;   // octile_dtype: e4m3
constexpr int kGranularity = OCTILE_DEFAULT_GRANULARITY;
constexpr int kScaleFormat = 1;  // octile_scale_format: f32
constexpr bool kOcpFloor = false;
constexpr bool kDelayed = false;
constexpr int kGroupWalk = OCTILE_DEFAULT_GROUP_WALK;
constexpr bool kSwizzled = false;
constexpr int kUpdateThreads = 256;
constexpr int kUpdateColumns = 4;
constexpr bool kRowwise = true;
constexpr bool kTransposed = true;
constexpr unsigned kAmaxEpsilonBits = 0;  // fp32
constexpr int kTileRows = OCTILE_DEFAULT_TILE_ROWS;
constexpr int kTileCols = OCTILE_DEFAULT_TILE_COLS;
constexpr int kStepRows = OCTILE_DEFAULT_TILE_ROWS;
constexpr bool kSideBySide = false;
constexpr bool kOfHalves = false;
constexpr int kTableOffset = 0;
constexpr int kRingsOffset = 0;
constexpr int kThreads = 256;
constexpr int kClusterBlocks = 8;
constexpr int kBlocksPerSm = 2;
constexpr bool kRowsFastest = true;
constexpr bool kOrdersScales = false;
constexpr bool kHalvesTogether = false;
constexpr bool kCopiesApart = false;
constexpr int kWaitingOffset = 0;
constexpr int kFingerprintThreads = 512;
constexpr int kOrderThreads = 512;
constexpr bool kBiasGradient = false;
constexpr unsigned kNormEpsilonBits = 0;  // fp32
constexpr int kNormThreads = 256;
constexpr int kAmaxThreads = 256;
constexpr int kAmaxBlocksPerSm = 4;
constexpr int kAmaxRows = 8;
constexpr int kAmaxStripe = 512;
constexpr int kAmaxLanes = 8;
constexpr int kWholeLineRows = 512;
#ifdef OCTILE_DEFAULT_INPUT
template <typename P>
using Input = OCTILE_DEFAULT_INPUT;
#else
template <typename P>
using Input = quantize::TensorInput<P>;
#endif
template <typename P>
using Values = P;
// The expression of RMSNorm.
struct Expression {
  static constexpr int kFirst = 0;
  static constexpr int kInputs = 2;
  static constexpr int kType = 3;
  static constexpr bool kHalves = false;
  static constexpr bool kWeight = true;
  static constexpr bool kRowFactor = true;
  static constexpr bool kTap = false;
  static constexpr bool kLooksUp = false;
  static constexpr u32 kFirstMagnitude = 0, kLastMagnitude = 0, kTableHalf = 0;
  static __device__ __forceinline__ float looked_up(float x0) { return x0; }
  template <int kPart>
  static __device__ __forceinline__ float value(float x0, float x1, float x2, float, float) {
    return __fmul_rn(__fmul_rn(x0, x2), x1);
  }
};
}  // namespace cfg
