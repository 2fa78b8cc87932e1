#include <algorithm>
#include <array>

#include "generator/core/layout.h"
#include "generator/quantize/composition.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/tile_rules.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

// Resident warps that an SM should find in the whole launch. 16 warps with 2 KB each keep 33 KB in
// flight, which the 4.3 TB/s of an H200 need at about 1 us of loaded latency.
constexpr double kWarpsPerSm = 16;
constexpr double kFewWarps = 4;          // warps of an SM below which a row's tile is not widened
constexpr int kColumnsOfASector = 1024;  // their 1x32 scales fill a sector of 32 bytes

// A launch of few waves ends with SMs that idle, so tiles have a step of four rows until there are
// ten waves of them. They have fewer if warps would be missing, but one, which does not stream,
// only if all tiles are resident at once.
constexpr std::array kShortenStreamed{
    Shortening{.least = 4, .tiles_per_sm = 10, .in_waves = true},
    Shortening{.least = 2, .tiles_per_sm = kWarpsPerSm},
    Shortening{.least = 1, .tiles_per_sm = kWarpsPerSm, .only_if_resident = true}};
constexpr std::array kShorten{Shortening{.least = 1, .tiles_per_sm = kWarpsPerSm}};
// Six tiles for each of the 16 warps of an SM.
constexpr std::array kShortenLookedUp{Shortening{.least = 8, .tiles_per_sm = 96}};

// Returns whether a row's scales are bytes that lie behind each other.
bool fills_sectors(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kQuantize && p.q.granularity == Granularity::k1x32 &&
         p.q.scale == ScaleFormat::kE8M0 && p.scale_layout == ScaleLayout::kLinear &&
         p.grouping == Grouping::kNone && !is_fp8(p.x.dtype);
}

bool fills_whole_sectors(const QuantizeProblem& p) {
  return fills_sectors(p) && p.cols >= kColumnsOfASector;
}

bool has_table(const QuantizeProblem& p) { return lookup_of(p) != nullptr; }

// Halves a thread block while the rows on their way pass its static shared memory.
void fit_ring(QuantizeConfig& c, const TileCase& t) {
  while (ring_bytes(t.problem, c) > kMostStaticSmem) {
    c.threads /= 2;
    c.blocks_per_sm *= 2;
  }
}

// Finds the smallest cluster of the tile's threads, at most `most_threads` a block, that holds the
// tensor in as few loads of a thread as it takes.
void hold_tensor(QuantizeConfig& c, const TileCase& t, int cluster, int most_threads) {
  const std::int64_t units = t.rows * ceil_div(t.problem.cols, warp_columns(t.problem));
  c.cluster = cluster;
  c.blocks_per_sm = 1;
  const auto units_of_cluster = [&] {
    return std::int64_t{c.tile_rows} * c.cluster * (c.threads / kWarp);
  };
  while (units_of_cluster() < units) {
    const bool more_loads = c.tile_rows < 2 || c.threads == most_threads;
    (more_loads ? c.tile_rows : c.threads) *= 2;
  }
}
void hold_tensor_in_block(QuantizeConfig& c, const TileCase& t) { hold_tensor(c, t, 1, 1024); }
void hold_tensor_in_cluster(QuantizeConfig& c, const TileCase& t) { hold_tensor(c, t, 8, 512); }

// Widens the tile of one row to as many loads as four rows would have, or to the columns that fill
// a sector with scales. It is narrower if half of it has all columns, or if more than an eighth of
// all tiles lies behind the last column.
void fit_one_row(QuantizeConfig& c, const TileCase& t) {
  const QuantizeProblem& p = t.problem;
  const int warp_cols = warp_columns(p);
  const bool whole_sectors = fills_sectors(p);
  c.tile_cols = whole_sectors ? kColumnsOfASector : 4 * warp_cols;
  const auto is_too_wide = [&] {
    const std::int64_t behind = ceil_div(p.cols, c.tile_cols) * c.tile_cols - p.cols;
    return c.tile_cols / 2 >= p.cols || (!whole_sectors && 8 * behind > p.cols) ||
           t.tiles_per_sm(1, c.tile_cols) < kFewWarps;
  };
  while (c.tile_cols > warp_cols && is_too_wide()) c.tile_cols /= 2;
}

// Returns whether 48 warps an SM, 42 registers a thread, hold tiles of 2 rows.
bool fits_48_warps(const QuantizeProblem& p) {
  return p.operation == QuantizeOperation::kQuantize && p.q.granularity == Granularity::k1x128 &&
         residency_of(TileKind::kLoads, residency_values(p)).warps == 32;
}

// Two warps a block: a slot is refilled as soon as a pair of warps is done. On an H200 this is 1 %
// faster than blocks of 8 warps at 32768x4096 and equal elsewhere.
constexpr int kPair = 64;

constexpr std::array kWarpTileRules = std::to_array<TileRule>({
    {.name = "tensor_in_block",
     .needs = may_hold_tensor,
     .bounds = {.units_at_most = 64, .knows_rows = true, .needs_clusters = true},
     .tile = {.rows = 1, .threads = 128},
     .fit = hold_tensor_in_block,
     .reason = "one thread block holds a tensor of so few loads, so x is read once",
     .measured = "h100"},
    {.name = "tensor_in_cluster",
     .needs = may_hold_tensor,
     .bounds = {.units_at_most = 256, .knows_rows = true, .needs_clusters = true},
     .tile = {.rows = 1, .threads = 256},
     .fit = hold_tensor_in_cluster,
     .reason = "a cluster holds the tensor sooner than two kernels read it",
     .measured = "h100"},
    // The bound is chosen; tensors from 4096 x 7168 on were measured.
    {.name = "table",
     .needs = has_table,
     .bounds = {.elements_per_sm_at_least = 64 * 1024, .knows_rows = true},
     .tile =
         {.rows = 32, .threads = 512, .warps = 16, .looks_up = true, .shorten = kShortenLookedUp},
     .reason = "a thread fills some 14 places of the table, which pays for large tensors; 16 warps "
               "have 64 KB on their way, and more spill",
     .measured = "h200"},
    // Most rows of a masked group may not exist, so blocks without a tile should be few.
    {.name = "streamed_masked_halves",
     .pattern = "group=masked",
     .needs = takes_both_halves,
     .tile = {.rows = 8, .threads = 256, .kind = TileKind::kStreamed, .shorten = kShorten},
     .fit = fit_ring,
     .reason = "large thread blocks, because most rows of a masked group may not exist"},
    {.name = "streamed_masked",
     .pattern = "group=masked",
     .needs = streams_rows,
     .tile = {.rows = 16, .threads = 256, .kind = TileKind::kStreamed, .shorten = kShorten},
     .fit = fit_ring,
     .reason = "large thread blocks, because most rows of a masked group may not exist"},
    {.name = "streamed_halves",
     .needs = takes_both_halves,
     .tile = {.rows = 8, .threads = kPair, .kind = TileKind::kStreamed, .shorten = kShorten},
     .fit = fit_ring,
     .reason = "a thread holds one step of both halves; the next two lie in shared memory",
     .measured = "h200"},
    {.name = "streamed",
     .pattern = "group=none",
     .needs = streams_rows,
     .tile =
         {.rows = 16, .threads = kPair, .kind = TileKind::kStreamed, .shorten = kShortenStreamed},
     .fit = fit_ring,
     .reason = "a thread holds one step of values; tiles are short until ten waves of them, since "
               "the last wave leaves SMs idle (SwiGLU of 7168 columns, 64 to 4096 rows)",
     .measured = "h100"},
    {.name = "streamed_groups",
     .needs = streams_rows,
     .tile = {.rows = 16, .threads = kPair, .kind = TileKind::kStreamed, .shorten = kShorten},
     .fit = fit_ring,
     .reason = "a thread holds one step of values; the next two lie in shared memory"},
    {.name = "masked",
     .pattern = "group=masked",
     .tile = {.rows = 32, .threads = 128},
     .reason = "long tiles, because most rows of a masked group may not exist, and the row count "
               "does not say how many tiles there are",
     .measured = "h200"},
    {.name = "two_rows",
     .needs = fits_48_warps,
     .bounds = {.knows_rows = true,
                .tiles = {.rows = 8, .at_most = 32},
                .also = {.rows = 2, .least = kWarpsPerSm}},
     .tile = {.rows = 2, .threads = 128, .warps = 48},
     .reason = "tiles of 8 rows would all be resident at once and load all of x before they store "
               "a code",
     .measured = "h100"},
    {.name = "one_row",
     .pattern = "op=quantize",
     .bounds = {.knows_rows = true, .tiles = {.rows = 4, .below = kWarpsPerSm}},
     .tile = {.rows = 1, .threads = kPair, .kind = TileKind::kOneRow},
     .fit = fit_one_row,
     .reason = "a warp of one row has as many loads as four rows would have, and one address",
     .measured = "h200"},
    {.name = "row_of_sectors",
     .needs = fills_whole_sectors,
     .bounds = {.knows_rows = true},
     .tile = {.rows = 1, .threads = 128, .kind = TileKind::kOneRow},
     .fit = fit_one_row,
     .reason = "1024 columns fill a sector with their 1x32 scales, and storing a sector takes as "
               "long as storing 8 scales",
     .measured = "h200"},
    {.name = "dequantize_few_rows",
     .pattern = "op=dequantize",
     .bounds = {.knows_rows = true, .tiles = {.rows = 4, .below = kWarpsPerSm}},
     .tile = {.rows = 2, .threads = 128, .warps = 24},
     .reason = "short tiles give every SM warps"},
    {.name = "four_rows",
     .bounds = {.knows_rows = true, .tiles = {.rows = 8, .below = kWarpsPerSm}},
     .tile = {.rows = 4, .threads = 128, .warps = 32},
     .reason = "the unit of scheduling shrinks with the tile, so that warps spread over the SMs"},
    {.name = "eight_rows",
     .tile = {.rows = 8, .threads = kPair},
     .reason = "8 loads of a thread are in flight, and 8 scales fill a sector of 32 bytes; a pair "
               "of warps is replaced as soon as it is done",
     .measured = "h200"},
});

}  // namespace

std::span<const TileRule> warp_tile_rules() { return kWarpTileRules; }

}  // namespace octile
