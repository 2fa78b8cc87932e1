// Delayed scaling: derives the encode scales of the next step from the maxima of earlier steps, for
// many tensors and many states in one launch. A block has kUpdateColumns tensors of a state; its
// other threads share their histories.
//
//   amax[t]         = chosen from history[:, t]    (largest, latest, exponential average)
//   encode_scale[t] = fp8_max / amax[t] * 2^-margin if amax[t] > 0; otherwise unchanged
//   history         moves on by one row; row 0 becomes 0, and the next step's quantising raises it
//
// history is [length][tensors]. Infinities and NaNs count as 0, so that one overflowed step cannot
// spoil a scale.
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
  i64 history_stride, scale_stride;  // from one state to the next
  int choice;
  float margin_factor;
  float share;
  int unused;
};
static_assert(sizeof(Args) == 64, "ScaleUpdateKernelArgs has 64 bytes");

constexpr int kLargest = 0;
constexpr int kAverage = 2;
constexpr int kColumns = cfg::kUpdateColumns;
constexpr int kRows = cfg::kUpdateThreads / kColumns;  // rows that a block reads at a time
constexpr int kInFlight = 8;                           // reads of a thread before it writes

// A history is fp32 for every type of x.
using Rule = quantize::Rule<quantize::Source<quantize::kFP32>, cfg::kTargetType, cfg::kScaleFormat,
                            cfg::kOcpFloor>;

__device__ __forceinline__ float finite_or_zero(float amax) {
  return (__float_as_uint(amax) & 0x7fffffffu) < 0x7f800000u ? amax : 0.0f;
}

// Moves rows 0 to length - 2 on by one, the last ones first, and returns the largest value that
// this thread has moved. All threads call it; those without a column move nothing.
__device__ __forceinline__ float move_on(float* column, i64 tensors, i64 length, int row) {
  float largest = 0.0f;
  for (i64 end = length; end > 1; end -= kRows * kInFlight) {
    float values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const i64 to = end - 1 - row - i * kRows;
      if (column != nullptr && to > 0) values[i] = column[(to - 1) * tensors];
    }
    __syncthreads();  // a row is read before it is written
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const i64 to = end - 1 - row - i * kRows;
      if (column != nullptr && to > 0) {
        column[to * tensors] = values[i];
        const float amax = finite_or_zero(values[i]);
        if (amax > largest) largest = amax;
      }
    }
  }
  return largest;
}

// Updates a column by the thread of its row 0. largest: that of the history.
__device__ __forceinline__ void update(const Args& args, float* column, float latest, float before,
                                       float largest, float* encode_scale) {
  float amax = args.choice == kLargest ? largest : latest;
  if (args.choice == kAverage) {
    if (before != 0.0f) {
      amax =
          __fadd_rn(__fmul_rn(before, __fsub_rn(1.0f, args.share)), __fmul_rn(latest, args.share));
    }
    column[args.tensors] = amax;
  }
  if (amax != 0.0f) {
    const float scale =
        Rule::encode_scale(__float_as_uint(amax), __uint_as_float(cfg::kAmaxEpsilonBits));
    *encode_scale = __fmul_rn(scale, args.margin_factor);
  }
  column[0] = 0.0f;
}

}  // namespace scale_update

extern "C" __global__ void __launch_bounds__(cfg::kUpdateThreads)
    OCTILE_UPDATE_NAME(const __grid_constant__ scale_update::Args args) {
  using namespace scale_update;
  __shared__ float largest_of[cfg::kUpdateThreads];
  wait_and_let_next_start();
  const i64 blocks = (args.tensors + kColumns - 1) / kColumns;  // of a state
  const i64 state = static_cast<i64>(blockIdx.x) / blocks;
  const i64 tensor = static_cast<i64>(blockIdx.x) % blocks * kColumns + threadIdx.x % kColumns;
  const int row = threadIdx.x / kColumns;
  float* const column = tensor < args.tensors ? args.history + state * args.history_stride + tensor
                                              : static_cast<float*>(nullptr);
  const bool decides = row == 0 && column != nullptr;
  float latest = 0.0f, before = 0.0f, largest = 0.0f;
  if (decides) {
    latest = finite_or_zero(column[0]);
    if (args.choice == kAverage) before = finite_or_zero(column[args.tensors]);
    if (args.choice == kLargest) largest = finite_or_zero(column[(args.length - 1) * args.tensors]);
  }
  if (args.choice != kAverage) {
    __syncthreads();  // the rows above are read before they are written
    const float moved = move_on(column, args.tensors, args.length, row);
    if (moved > largest) largest = moved;
  }
  largest_of[threadIdx.x] = largest;
  __syncthreads();
  if (!decides) return;
  for (int i = 1; i < kRows; ++i) {
    const float other = largest_of[threadIdx.x + i * kColumns];
    if (other > largest) largest = other;
  }
  update(args, column, latest, before, largest,
         args.encode_scale + state * args.scale_stride + tensor);
}
