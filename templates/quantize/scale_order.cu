// Orders, in place, the scales that tiles stored by whole sectors (ordered_scales.cuh). A thread
// block reads up to kGroups groups side by side and writes them again. It takes several because
// their pieces of a run touch: with one group every sector would be a request of its own.
//
// The grid has the blocks of the row-wise scales, then those of the transposed ones. A misaligned
// array has no block, because its scales were stored in order.
#ifndef OCTILE_EMITTED
#define OCTILE_ORDER_NAME octile_quantize_scale_order_default
#define OCTILE_DEFAULT_GRANULARITY 5
#define OCTILE_DEFAULT_TILE_ROWS 128
#define OCTILE_DEFAULT_TILE_COLS 128
#include "quantize/default_prologue.cuh"
#endif

namespace scale_order {

using Scales = quantize::OrderedScales;
using quantize::Vector;
constexpr int kBlock = 32;  // elements of a scale
constexpr int kGroups = Scales::kGroupsTogether;
constexpr int kPieces = Scales::kAcross / sizeof(Vector);  // pieces of a group's sector
constexpr int kWords = sizeof(Vector) / 4;
static_assert(cfg::kOrderThreads % (kGroups * kPieces) == 0, "threads have whole runs");

__device__ __forceinline__ i64 blocks_of(i64 extent) { return (extent + kBlock - 1) / kBlock; }

// The sectors of a group: tile after tile, and run after run of a tile.
struct Group {
  union {
    Vector piece[Scales::kRuns * kPieces];
    u32 word[Scales::kTiles][Scales::kRuns];
  };
  Vector apart[kPieces];  // puts the groups into different banks
};

}  // namespace scale_order

extern "C" __global__ void __launch_bounds__(cfg::kOrderThreads)
    OCTILE_ORDER_NAME(const __grid_constant__ quantize::Args args) {
  using namespace scale_order;
  wait_and_let_next_start();
  if (quantize::skipped(args)) return;
  const Scales rows{args.scale, args.rows, blocks_of(args.cols), args.scale_ld};
  const Scales columns{args.scale_transposed, args.cols, blocks_of(args.rows),
                       args.scale_ld_transposed};
  const i64 of_rows = cfg::kRowwise ? rows.order_blocks() : 0;
  const i64 block = blockIdx.x;
  const bool transposed = !cfg::kRowwise || block >= of_rows;
  const Scales scales = transposed ? columns : rows;
  const quantize::Tile part =
      quantize::tile_at(block - (transposed ? of_rows : 0), scales.order_blocks_across());
  const i64 left = scales.groups_across() - part.col * kGroups;
  // The thread's piece of a run: its group, and its half of the group's sector.
  const int piece = static_cast<int>(threadIdx.x) % (kGroups * kPieces);
  const int group = piece / kPieces, half = piece % kPieces;
  const bool has = group < left;
  const int first_run = static_cast<int>(threadIdx.x) / (kGroups * kPieces);
  constexpr int kStep = cfg::kOrderThreads / (kGroups * kPieces);  // runs
  char* const p = scales.sector(part.row * Scales::kRuns,
                                (part.col * kGroups + group) * Scales::kAcross, first_run) +
                  half * sizeof(Vector);

  __shared__ Group held[kGroups];
  if (has) {
    Vector all[Scales::kRuns / kStep];
#pragma unroll
    for (int i = 0; i < Scales::kRuns / kStep; ++i) {
      all[i] = memory::reread_16(p + i * kStep * scales.ld);
    }
#pragma unroll
    for (int i = 0; i < Scales::kRuns / kStep; ++i) {
      held[group].piece[(first_run + i * kStep) * kPieces + half] = all[i];
    }
  }
  __syncthreads();
  if (!has) return;
#pragma unroll
  for (int i = 0; i < Scales::kRuns / kStep; ++i) {
    Vector four;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      four.word[w] = held[group].word[kWords * half + w][first_run + i * kStep];
    }
    memory::store_16(p + i * kStep * scales.ld, four);
  }
}
