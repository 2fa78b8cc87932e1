#include "generator/quantize/grid.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/core/types.h"
#include "generator/quantize/fused_source.h"

namespace octile {
namespace {

constexpr int kWarp = 32;
constexpr int kVectorBytes = 16;              // one load of one thread
constexpr int kPartialsTogether = 4;          // words of one load in tensor_magnitude (scale.cuh)
constexpr std::int64_t kMaxGrid = INT32_MAX;  // gridDim.x

bool works_by_warps(const QuantizeProblem& p) {
  const QuantizeTemplate t = template_of(p);
  return t == QuantizeTemplate::kSegments || t == QuantizeTemplate::kShard ||
         t == QuantizeTemplate::kDequantize;
}

bool holds_whole_rows(const QuantizeProblem& p) {
  const QuantizeTemplate t = template_of(p);
  return t == QuantizeTemplate::kRows || t == QuantizeTemplate::kNormRows;
}

// Returns the rows of tiles. Contiguous groups can make one more for every group (groups.cuh:
// slots).
std::int64_t tiles_down(GroupWalk walk, std::int64_t rows, std::int64_t groups,
                        std::int64_t tile_rows) {
  switch (walk) {
    case GroupWalk::kGroupByGroup:
      return rows / tile_rows + groups;
    case GroupWalk::kMasked:
      return ceil_div(rows, tile_rows) * groups;
    default:
      return ceil_div(rows, tile_rows);
  }
}

TileGrid tile_grid(const QuantizeProblem& p, const QuantizeConfig& c) {
  const std::int64_t cols = c.halves_together ? p.cols / 2 : p.cols;
  const bool one_across = holds_whole_rows(p) && cols > 0;
  return {.walk = group_walk_of(p),
          .tile_rows = c.tile_rows,
          .across = one_across ? 1 : ceil_div(cols, std::int64_t{c.tile_cols}),
          .tiles_per_block = works_by_warps(p) ? c.threads / kWarp : 1};
}

}  // namespace

std::int64_t TileGrid::blocks(std::int64_t rows, std::int64_t groups) const {
  if (rows <= 0) return 0;
  return ceil_div(tiles_down(walk, rows, groups, tile_rows) * across, tiles_per_block);
}

std::int64_t TileGrid::shard_blocks(std::int64_t first_row, std::int64_t last_row) const {
  const std::int64_t down = last_row / tile_rows - first_row / tile_rows + 1;
  return ceil_div(down * across, tiles_per_block);
}

bool FirstPassGrid::raises(std::int64_t rows) const {
  return pass == FirstPass::kGroups || (pass == FirstPass::kLines && rows > whole_line_rows);
}

std::int64_t FirstPassGrid::blocks(std::int64_t rows, std::int64_t groups) const {
  if (pass == FirstPass::kLines && !raises(rows)) return rows + column_blocks;
  const std::int64_t blocks = tiles.blocks(rows, groups);
  if (pass != FirstPass::kTensor) return blocks;
  return std::min(round_up(blocks, kPartialsTogether), most_partials);
}

FirstPassGrid first_pass_grid(const QuantizeProblem& p, int sm_count) {
  FirstPassGrid grid;
  grid.pass = first_pass_of(p);
  if (grid.pass == FirstPass::kNone) return grid;
  // The pass holds values, even if the tiles hold codes.
  const int elements = kVectorBytes / size_of(source_type(p));
  grid.tiles.across = ceil_div(p.cols, std::int64_t{kWarp} * elements);
  if (grid.pass == FirstPass::kLines) {
    grid.tiles.tile_rows = kStripeRows;
    grid.whole_line_rows = whole_line_rows(p);
    grid.column_blocks = ceil_div(p.cols, std::int64_t{kLineLanes} * elements);
    return grid;
  }
  grid.tiles.walk = group_walk_of(p);
  grid.tiles.tile_rows = first_pass_rows(p);
  grid.tiles.tiles_per_block = kFirstPassThreads / kWarp;
  grid.most_partials =
      round_up(std::int64_t{sm_count} * first_pass_blocks_per_sm(p), kPartialsTogether);
  return grid;
}

QuantizeGrid grid_of(const QuantizeProblem& p, const QuantizeConfig& c, int sm_count) {
  return {.tiles = tile_grid(p, c),
          .most_resident = c.looks_up ? std::int64_t{sm_count} * c.blocks_per_sm : 0,
          .first_pass = first_pass_grid(p, sm_count),
          .workspace = workspace_of(p, sm_count)};
}

Result<std::int64_t> within_a_grid(std::int64_t rows, std::int64_t cols, std::int64_t blocks) {
  if (blocks <= kMaxGrid) return blocks;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("quantise of {} x {} needs {} thread blocks; a grid holds {}", rows, cols,
                          blocks, kMaxGrid));
}

}  // namespace octile
