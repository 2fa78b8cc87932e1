#include "generator/quantize/grid.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/core/types.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

constexpr int kPartialsTogether = 4;          // words of one load in tensor_magnitude (scale.cuh)
constexpr std::int64_t kMaxGrid = INT32_MAX;  // gridDim.x

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

// Returns the blocks of scales as tiles of which a thread has one each.
TileGrid scales_grid(const QuantizeProblem& p, const QuantizeConfig& c) {
  const std::int64_t extent = scale_extent(p);
  return {.tile_rows = extent, .across = ceil_div(p.cols, extent), .tiles_per_block = c.threads};
}

TileGrid tile_grid(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (template_of(p) == QuantizeTemplate::kScales) return scales_grid(p, c);
  const std::int64_t cols = c.halves_together ? p.cols / 2 : p.cols;
  const bool one_across = holds_whole_rows(p) && cols > 0;
  return {.walk = group_walk_of(p),
          .tile_rows = holds_few_rows(p, c) ? kScaleBlock : c.tile_rows,
          .across = one_across ? 1 : ceil_div(cols, std::int64_t{c.tile_cols}),
          .tiles_per_block = works_by_warps(p) ? c.threads / kWarp : 1,
          .blocks_per_tile = c.copies_apart ? 2 : 1,
          .cluster = c.cluster};
}

}  // namespace

std::int64_t TileGrid::blocks(std::int64_t rows, std::int64_t groups) const {
  if (rows <= 0) return 0;
  if (cluster > 0) return across > 0 ? cluster : 0;
  const std::int64_t tiles = tiles_down(walk, rows, groups, tile_rows) * across;
  return ceil_div(tiles, tiles_per_block) * blocks_per_tile;
}

std::int64_t TileGrid::range_blocks(std::int64_t first_row, std::int64_t last_row) const {
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

FirstPassGrid first_pass_grid(const QuantizeProblem& p, const QuantizeConfig& c, int sm_count) {
  FirstPassGrid grid;
  grid.pass = first_pass_of(p, c);
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
  grid.tiles.tile_rows = first_pass_rows(p, c);
  grid.tiles.tiles_per_block = kFirstPassThreads / kWarp;
  grid.most_partials = most_partial_maxima(p, sm_count);
  return grid;
}

QuantizeGrid grid_of(const QuantizeProblem& p, const QuantizeConfig& c, int sm_count) {
  return {.tiles = tile_grid(p, c),
          .most_resident = c.looks_up ? std::int64_t{sm_count} * c.blocks_per_sm : 0,
          .first_pass = first_pass_grid(p, c, sm_count),
          .workspace = workspace_of(p, sm_count)};
}

Result<std::int64_t> within_a_grid(std::int64_t rows, std::int64_t cols, std::int64_t blocks) {
  if (blocks <= kMaxGrid) return blocks;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("quantise of {} x {} needs {} thread blocks; a grid holds {}", rows, cols,
                          blocks, kMaxGrid));
}

Result<std::int64_t> launch_blocks(const QuantizeProblem& p, const QuantizeConfig& c,
                                   std::int64_t rows, std::int64_t groups) {
  return within_a_grid(rows, p.cols, grid_of(p, c, 1).tiles.blocks(rows, groups));
}

int first_pass_blocks_per_sm(const QuantizeProblem& p) {
  // Its registers allow no more.
  const bool lines = first_pass_of(p) == FirstPass::kLines;
  if (lines && p.x.dtype == DType::kFP32 && source_shape(p.source).streams() > 3) return 1;
  const bool groups_of_wide =
      first_pass_of(p) == FirstPass::kGroups && (is_fp8(p.x.dtype) || p.x.dtype == DType::kFP32);
  return lines || groups_of_wide || !p.source.empty() ? 2 : 3;
}

std::int64_t most_partial_maxima(const QuantizeProblem& p, int sm_count) {
  return round_up(std::int64_t{sm_count} * first_pass_blocks_per_sm(p), kPartialsTogether);
}

int first_pass_rows(const QuantizeProblem& p, const QuantizeConfig& c) {
  constexpr int kRows = 8, kRowsOfGroups = 32;
  if (first_pass_of(p) == FirstPass::kGroups) return kRowsOfGroups;
  if (template_of(p) != QuantizeTemplate::kWarpTile || streams_rows(p)) return kRows;
  // As many loads as a warp of the cast has if the tensor is so small that its tiles have one row.
  // 512 rows of 7168 columns take 8 % longer so (H100).
  return c.tile_rows == 1 ? std::clamp(resources_of(p, c).vectors_per_thread, 1, kRows) : kRows;
}

std::int64_t whole_line_rows(const QuantizeProblem& p) {
  // One thread block reads 8192 elements at a time. With more columns the other blocks would end
  // long before the rows'.
  constexpr std::int64_t kMostColumns = 32768;
  return p.cols <= kMostColumns ? kStripeRows : 0;
}

bool first_pass_raises(const QuantizeProblem& p, std::int64_t rows) {
  return first_pass_grid(p, {}, 1).raises(rows);
}

Result<std::int64_t> first_pass_blocks(const QuantizeProblem& p, const QuantizeConfig& c,
                                       std::int64_t rows, int sm_count, std::int64_t groups) {
  return within_a_grid(rows, p.cols, first_pass_grid(p, c, sm_count).blocks(rows, groups));
}

OrderBlocks order_blocks(const QuantizeProblem& p, const QuantizeKernelArgs& args) {
  // As OrderedScales::order_blocks (templates/quantize/ordered_scales.cuh) counts them. A run has
  // the scales of `extent` elements.
  const auto blocks = [](const void* scales, std::int64_t outer, std::int64_t extent,
                         std::int64_t ld) {
    const auto bits = reinterpret_cast<std::uintptr_t>(scales) | static_cast<std::uintptr_t>(ld);
    if (bits % kOrderAlign != 0) return std::int64_t{0};
    const std::int64_t groups = ceil_div(extent, kShortBlock) / kOrderAcross;
    return outer / kOrderRuns * ceil_div(groups, kOrderGroupsTogether);
  };
  OrderBlocks all;
  if (has_rowwise(p.output)) {
    all.of_rows = blocks(args.scale, args.rows, args.cols, args.scale_ld);
  }
  if (has_transposed(p.output)) {
    all.of_columns = blocks(args.scale_transposed, args.cols, args.rows, args.scale_ld_transposed);
  }
  return all;
}

}  // namespace octile
