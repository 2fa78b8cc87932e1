// How many thread blocks the kernels of a quantise call have, and what workspace it needs. Most of
// it depends only on problem, configuration and device and is computed once, so that a launch only
// does arithmetic.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/config.h"
#include "generator/quantize/kernel_args.h"
#include "generator/quantize/problem.h"
#include "generator/quantize/workspace.h"

namespace octile {

// The tiles of a tensor and how they are shared out to thread blocks, which all lie along x.
struct TileGrid {
  GroupWalk walk = GroupWalk::kNone;
  std::int64_t tile_rows = 1;
  std::int64_t across = 0;           // tiles side by side
  std::int64_t tiles_per_block = 1;  // more than 1 if every warp of a block has its own tile
  std::int64_t blocks_per_tile = 1;  // 2 if a tile's copies have a thread block each
  std::int64_t cluster = 0;          // thread blocks that hold the whole tensor, if they do

  // Returns the thread blocks for a tensor. With groups this is an upper bound, because groups end
  // anywhere; blocks without a tile leave at once.
  std::int64_t blocks(std::int64_t rows, std::int64_t groups) const;
  // Returns the thread blocks for a flat range that touches the rows from first to last.
  std::int64_t range_blocks(std::int64_t first_row, std::int64_t last_row) const;
};

// The kernel that finds maxima before the main one.
struct FirstPassGrid {
  FirstPass pass = FirstPass::kNone;
  TileGrid tiles;
  std::int64_t most_partials = 0;    // kTensor: one maximum for every thread block
  std::int64_t whole_line_rows = 0;  // kLines: most rows whose lines are one thread block's
  std::int64_t column_blocks = 0;    // kLines: thread blocks that then share out the columns

  // Returns true if the pass raises maxima that must be cleared before it.
  bool raises(std::int64_t rows) const;
  std::int64_t blocks(std::int64_t rows, std::int64_t groups) const;
};
FirstPassGrid first_pass_grid(const QuantizeProblem&, const QuantizeConfig&, int sm_count);

struct QuantizeGrid {
  TileGrid tiles;
  std::int64_t most_resident = 0;  // 0, or if blocks go on to further tiles: those of one wave
  FirstPassGrid first_pass;
  QuantizeWorkspace workspace;

  // Returns how many of the tiles' thread blocks are launched.
  std::int64_t resident(std::int64_t blocks) const {
    return most_resident == 0 || blocks < most_resident ? blocks : most_resident;
  }
};
QuantizeGrid grid_of(const QuantizeProblem&, const QuantizeConfig&, int sm_count);

// Returns the count. Errors: kInvalidArgument if it passes the 2^31 - 1 blocks of a grid.
Result<std::int64_t> within_a_grid(std::int64_t rows, std::int64_t cols, std::int64_t blocks);

// Returns the thread blocks that `rows` rows need; 0 means that there is nothing to launch. Errors
// are those of within_a_grid.
Result<std::int64_t> launch_blocks(const QuantizeProblem&, const QuantizeConfig&, std::int64_t rows,
                                   std::int64_t groups = 0);

// ---- the kernels beside the main one; their threads are not tuned

inline constexpr int kFirstPassThreads = 256;
// The scale update: threads of a block, and the tensors that it has.
inline constexpr int kUpdateThreads = 256;
inline constexpr int kUpdateColumns = 4;
inline constexpr int kNormThreads = 256;   // threads of the kernel that norms rows, a block each
inline constexpr int kOrderThreads = 512;  // threads of the kernel that orders scales
// Threads of the kernel that finds out if x has changed, bytes that a thread block reads at a time,
// and its thread blocks on an SM.
inline constexpr int kFingerprintThreads = 512;
inline constexpr int kFingerprintPiece = kFingerprintThreads * 4 * 16;
inline constexpr int kFingerprintBlocksPerSm = 2;
inline constexpr int kBiasThreads = 32;  // threads of the sum of bias gradients, one a column

// Returns the residency of the first pass.
int first_pass_blocks_per_sm(const QuantizeProblem&);
// Returns the most partial maxima of a tensor that the first pass leaves.
std::int64_t most_partial_maxima(const QuantizeProblem&, int sm_count);
// Returns the rows of a warp of the first pass, if it finds a tensor's maximum or groups'.
int first_pass_rows(const QuantizeProblem&, const QuantizeConfig&);
inline constexpr int kStripeRows = 512;  // rows of a thread block that finds lines' maxima
inline constexpr int kLineLanes = 8;     // lanes along a row there, if it reads whole columns
// Returns the largest row count at which one thread block reads a whole line.
std::int64_t whole_line_rows(const QuantizeProblem&);
// Returns whether the first pass raises maxima that must be cleared before it.
bool first_pass_raises(const QuantizeProblem&, std::int64_t rows);
Result<std::int64_t> first_pass_blocks(const QuantizeProblem&, const QuantizeConfig&,
                                       std::int64_t rows, int sm_count, std::int64_t groups = 0);

// The thread blocks of the kernel that orders scales, those of the row-wise scales first. An array
// has none, and its scales are stored one by one, in two cases: its address or stride is not a
// multiple of kOrderAlign bytes, or it has no kOrderRuns runs of kOrderAcross scales. A default
// stride is a run's length / 32, rounded up to 4: a quarter of all lengths give such a multiple.
struct OrderBlocks {
  std::int64_t of_rows = 0;
  std::int64_t of_columns = 0;
  std::int64_t all() const { return of_rows + of_columns; }
};
OrderBlocks order_blocks(const QuantizeProblem&, const QuantizeKernelArgs&);
// The constants of OrderedScales (templates/quantize/ordered_scales.cuh). The emitted source
// asserts that they agree.
inline constexpr int kOrderAlign = 16;          // bytes
inline constexpr int kOrderRuns = 128;          // runs of a tile
inline constexpr int kOrderAcross = 32;         // scales of a run that tiles share
inline constexpr int kOrderGroupsTogether = 8;  // groups of such tiles that a thread block orders

}  // namespace octile
