// How many thread blocks the kernels of a quantise call have, and what workspace it needs. A
// problem, a configuration and a device settle most of it once, so that a launch has only
// arithmetic left.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/config.h"

namespace octile {

// The tiles of a tensor and how they are shared out to thread blocks, which all lie along x.
struct TileGrid {
  GroupWalk walk = GroupWalk::kNone;
  std::int64_t tile_rows = 1;
  std::int64_t across = 0;           // tiles side by side
  std::int64_t tiles_per_block = 1;  // more than 1 if every warp of a block has its own tile

  // Returns the thread blocks for a tensor. With groups this is an upper bound, because groups end
  // anywhere; blocks without a tile leave at once.
  std::int64_t blocks(std::int64_t rows, std::int64_t groups) const;
  // Returns the thread blocks for a flat range that touches the rows from first to last.
  std::int64_t shard_blocks(std::int64_t first_row, std::int64_t last_row) const;
};

// The kernel that finds maxima before the main one.
struct FirstPassGrid {
  FirstPass pass = FirstPass::kNone;
  TileGrid tiles;
  std::int64_t most_partials = 0;    // kTensor: one maximum for every thread block
  std::int64_t whole_line_rows = 0;  // kLines: up to so many rows a line is one thread block's
  std::int64_t column_blocks = 0;    // kLines: thread blocks that then share out the columns

  // Returns true if the pass raises maxima that must be cleared before it.
  bool raises(std::int64_t rows) const;
  std::int64_t blocks(std::int64_t rows, std::int64_t groups) const;
};
FirstPassGrid first_pass_grid(const QuantizeProblem&, int sm_count);

struct QuantizeGrid {
  TileGrid tiles;
  std::int64_t most_resident = 0;  // if blocks go on to further tiles: those of one wave; else 0
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

}  // namespace octile
