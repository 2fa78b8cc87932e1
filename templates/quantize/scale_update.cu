// Delayed scaling: derives the encode scales of the next step from the maxima of earlier steps, for
// many tensors in one launch. Each thread has one tensor.
//
//   amax[t]         = chosen from history[:, t]    (largest, latest, exponential average)
//   encode_scale[t] = fp8_max / amax[t] * 2^-margin if amax[t] > 0; otherwise unchanged
//   history         moves on by one row; row 0 becomes 0, and the next step's quantising raises it
//
// history is [length][tensors], so that neighbouring threads read neighbouring words. Infinities
// and NaNs count as 0, so that one overflowed step cannot spoil a scale.
#ifndef OCTILE_EMITTED
#define OCTILE_UPDATE_NAME octile_scale_update_default
#define OCTILE_DEFAULT_GRANULARITY 1
#define OCTILE_DEFAULT_TILE_ROWS 8
#define OCTILE_DEFAULT_TILE_COLS 256
#include "quantize/default_prologue.cuh"
#endif

namespace scale_update {

// ScaleUpdateKernelArgs on the host.
struct Args {
  float* history;
  float* encode_scale;
  i64 tensors, length;
  int choice;
  float margin_factor;
  float share;
  int unused;
};
static_assert(sizeof(Args) == 48, "ScaleUpdateKernelArgs has 48 bytes");

constexpr int kLargest = 0;
constexpr int kAverage = 2;

// A history is fp32, whatever type was quantised.
using Rule = quantize::Rule<quantize::Source<quantize::kFP32>, cfg::kTargetType, cfg::kScaleFormat,
                            cfg::kOcpFloor>;

__device__ __forceinline__ float finite_or_zero(float amax) {
  return (__float_as_uint(amax) & 0x7fffffffu) < 0x7f800000u ? amax : 0.0f;
}

}  // namespace scale_update

extern "C" __global__ void __launch_bounds__(cfg::kUpdateThreads)
    OCTILE_UPDATE_NAME(const __grid_constant__ scale_update::Args args) {
  using namespace scale_update;
  wait_and_let_next_start();
  const i64 tensor = static_cast<i64>(blockIdx.x) * cfg::kUpdateThreads + threadIdx.x;
  if (tensor >= args.tensors) return;
  float* const column = args.history + tensor;
  const float latest = finite_or_zero(column[0]);
  float amax = latest;
  if (args.choice == kLargest) {
    for (i64 i = 1; i < args.length; ++i) {
      const float earlier = finite_or_zero(column[i * args.tensors]);
      if (earlier > amax) amax = earlier;
    }
  } else if (args.choice == kAverage) {
    const float before = finite_or_zero(column[args.tensors]);
    if (before != 0.0f) {
      amax =
          __fadd_rn(__fmul_rn(before, __fsub_rn(1.0f, args.share)), __fmul_rn(latest, args.share));
    }
  }
  if (amax != 0.0f) {
    const float encode_scale =
        Rule::encode_scale(__float_as_uint(amax), __uint_as_float(cfg::kAmaxEpsilonBits));
    args.encode_scale[tensor] = __fmul_rn(encode_scale, args.margin_factor);
  }
  if (args.choice == kAverage) {
    column[args.tensors] = amax;
  } else {
    for (i64 i = args.length - 1; i > 0; --i) {
      column[i * args.tensors] = column[(i - 1) * args.tensors];
    }
  }
  column[0] = 0.0f;
}
