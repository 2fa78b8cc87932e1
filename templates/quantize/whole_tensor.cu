// Quantisation of a small tensor with one scale, row-wise, by the thread blocks of one cluster.
// They find the maximum themselves, so no kernel runs before.
//
//   q[r, c] = fp8(x[r, c] * encode scale),   scale = 1 / encode scale of max |x|
//
// A unit is the data that a warp loads at once: 512 bytes of a row, from column 0 on. The W warps
// of the cluster take the units in turn; those that follow each other are of different thread
// blocks:
//
//   warp w:  units w, w + W, w + 2 W, ...       (unit u: row u / across, columns of u % across)
//
// Steps of a warp:
//   source  every lane issues its kVectors loads of 16 bytes before it uses the first. Their
//           addresses are found before the wait for the kernels before
//   amax    one instruction finds the warp's. kClusterBlocks lanes leave it in the shared memory of
//           a thread block each, and a barrier of the cluster follows. Every warp then reduces the
//           W words by itself
//   scale   every thread derives it; the first stores it
//   cast    fp32 multiply, then two codes a cvt
//   output  8 bytes a lane
//
// A larger tensor is read twice, a unit at a time, and so is one whose address, stride or columns
// allow no whole vectors. The kernel is right for every tensor and fast for small ones.
#ifndef OCTILE_EMITTED
#define OCTILE_KERNEL_NAME octile_quantize_whole_tensor_default
#define OCTILE_DEFAULT_GRANULARITY 1
#define OCTILE_DEFAULT_TILE_ROWS 4
#define OCTILE_DEFAULT_TILE_COLS 256
#include "lib/cluster.cuh"
#include "quantize/default_prologue.cuh"
#endif

namespace whole_tensor {

using Src = quantize::Source<cfg::kSourceType>;
using Rule = quantize::Rule<Src, cfg::kTargetType, cfg::kScaleFormat, cfg::kOcpFloor>;
using quantize::Args;
using quantize::Vector;

constexpr int kVectors = cfg::kTileRows;        // loads of a thread
constexpr int kUnitCols = 32 * Src::kElements;  // columns of a warp's load
constexpr int kWarps = cfg::kThreads / 32;
constexpr int kAllWarps = kWarps * cfg::kClusterBlocks;
static_assert(cfg::kTileCols == kUnitCols, "a warp loads a unit at once");
static_assert(cfg::kGranularity == quantize::kPerTensor && !cfg::kDelayed && cfg::kGroupWalk == 0,
              "one scale, found here");

using Patch = quantize::Patch<Src, 1, 1, kUnitCols, 1>;
using Input = cfg::Input<Patch>;
using Output = quantize::RowOutput<Patch>;
static_assert(!Input::kComputed, "x itself");

// The units of a warp, one after the other.
struct Turn {
  i64 across;  // units of a row
  quantize::Tile unit, step;

  __device__ __forceinline__ Turn(const Args& args, u32 warp)
      : across((args.cols + kUnitCols - 1) / kUnitCols),
        unit(quantize::tile_at(warp, static_cast<u64>(across))),
        step(quantize::tile_at(kAllWarps, static_cast<u64>(across))) {}

  __device__ __forceinline__ void next() {
    unit.row += step.row;
    unit.col += step.col;
    if (unit.col >= across) {
      unit.col -= across;
      ++unit.row;
    }
  }
  // Returns the lane's part of the current unit.
  __device__ __forceinline__ Patch patch(const Args& args) const {
    return {args, unit.row, unit.col * kUnitCols + threadIdx.x % 32 * Src::kElements};
  }
};

// Returns the maximum over the cluster. Every thread of it calls this once. Holds a barrier of the
// cluster.
__device__ __forceinline__ u32 of_cluster(u32 top, u32 rank) {
  __shared__ u32 tops[kAllWarps];
  const u32 lane = threadIdx.x % 32;
  top = __reduce_max_sync(0xffffffffu, top);
  u32* const place = tops + threadIdx.x / 32 * cfg::kClusterBlocks + rank;
  if constexpr (cfg::kClusterBlocks == 1) {
    if (lane == 0) *place = top;
    __syncthreads();
  } else {
    cluster_wait();  // all thread blocks have started
    if (lane < cfg::kClusterBlocks) store_in_cluster_4(place, lane, top);
    cluster_sync_memory();
  }
  u32 all = 0;
#pragma unroll
  for (u32 i = 0; i < kAllWarps; i += 32) {
    // Lanes beyond the last word read one twice, which changes no maximum.
    all = reduce::max(all, tops[i + lane % (kAllWarps < 32 ? kAllWarps : 32)]);
  }
  return __reduce_max_sync(0xffffffffu, all);
}

// Returns the encode scale. The first thread of the cluster stores the scale and raises the record.
__device__ __forceinline__ float find_scale(const Args& args, u32 top, u32 rank) {
  const u32 all = of_cluster(top, rank);
  const float encode_scale = Rule::encode_scale(all, __uint_as_float(cfg::kAmaxEpsilonBits));
  if (rank == 0 && threadIdx.x == 0) {
    quantize::record_scale<Src>(args, all, encode_scale);
    Rule::store(args.scale, 0, encode_scale);
  }
  return encode_scale;
}

// Writes the codes of a patch's infinities and NaNs over the zeros', and counts them.
__device__ __forceinline__ void mark(const Args& args, const Patch& patch) {
  const Output output(args, patch);
  quantize::count_nonfinite(args,
                            output.mark_nonfinite<cfg::kTargetType>(patch, Input(args, patch)));
}

// Quantises a tensor that the cluster's registers hold, in whole vectors. It holds the wait for the
// kernels before.
__device__ __forceinline__ void give_held(const Args& args, const Turn& first, u32 rank) {
  const char* from[kVectors];
  char* to[kVectors];
  bool exists[kVectors];
  Turn turn = first;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Patch patch = turn.patch(args);
    Input input(args, patch);
    Output output(args, patch);
    input.settle();
    output.settle();
    from[i] = input.x;
    to[i] = output.q;
    exists[i] = patch.whole();
    turn.next();
  }
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;
  Vector x[kVectors];
  u32 magnitudes[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = {{0, 0, 0, 0}};
    if (exists[i]) x[i] = memory::load_16(from[i]);
  }
  quantize::round_loaded<Src>(x);
  const bool nonfinite = quantize::measure<Src>(x, magnitudes);
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) top = reduce::max(top, magnitudes[i]);
  const float encode_scale = find_scale(args, top, rank);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!exists[i]) continue;
    quantize::store_whole<Src>(to[i],
                               quantize::cast_vector<Src, cfg::kTargetType>(x[i], encode_scale));
  }
  if (!nonfinite) return;
  turn = first;
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i, turn.next()) mark(args, turn.patch(args));
}

// Quantises any other tensor.
__device__ __forceinline__ void give_units(const Args& args, const Turn& first, u32 rank) {
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;
  Vector x[1];
  u32 magnitudes[1], top = 0;
  bool nonfinite = false;
#pragma unroll 1
  for (Turn turn = first; turn.unit.row < args.rows; turn.next()) {
    const Patch patch = turn.patch(args);
    Input(args, patch).load(patch, x);
    nonfinite |= quantize::measure<Src>(x, magnitudes);
    top = reduce::max(top, magnitudes[0]);
  }
  const float encode_scale = find_scale(args, top, rank);
#pragma unroll 1
  for (Turn turn = first; turn.unit.row < args.rows; turn.next()) {
    const Patch patch = turn.patch(args);
    Input(args, patch).load(patch, x);
    quantize::measure<Src>(x, magnitudes);
    const Output output(args, patch);
    output.write<cfg::kTargetType>(patch, x, [&](int) { return encode_scale; });
    if (nonfinite) mark(args, patch);
  }
}

__device__ __forceinline__ void run(const Args& args) {
  u32 rank = 0;
  if constexpr (cfg::kClusterBlocks > 1) {
    cluster_arrive();
    rank = cluster_rank();
  }
  const Turn first(args, threadIdx.x / 32 * cfg::kClusterBlocks + rank);
  const Patch patch = first.patch(args);
  const bool whole_vectors =
      args.cols % Src::kElements == 0 && Input(args, patch).aligned && Output(args, patch).aligned;
  if (whole_vectors && args.rows * first.across <= kVectors * kAllWarps) {
    give_held(args, first, rank);
  } else {
    give_units(args, first, rank);
  }
}

}  // namespace whole_tensor

extern "C" __global__ void __launch_bounds__(cfg::kThreads, cfg::kBlocksPerSm)
    OCTILE_KERNEL_NAME(const __grid_constant__ quantize::Args args) {
  whole_tensor::run(args);
}
