#include <algorithm>
#include <array>

#include "generator/core/layout.h"
#include "generator/quantize/composition.h"
#include "generator/quantize/tile_rules.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

bool patch_fits_by_halves(const QuantizeProblem& p) {
  return may_take_halves_together(p) &&
         residency_of(TileKind::kHalves, residency_values(p)).warps == 32;
}

bool patch_fits(const QuantizeProblem& p) {
  return has_transposed(p.output) &&
         residency_of(TileKind::kPatch, residency_values(p)).warps == 32;
}

bool has_a_copy(const QuantizeProblem& p) { return has_transposed(p.output); }

bool stages_by_fours(const QuantizeProblem& p) {
  return has_transposed(p.output) &&
         residency_of(TileKind::kStaged, residency_values(p)).warps == 32;
}

bool has_80_registers(const QuantizeProblem& p) {
  return residency_of(TileKind::kRowwise, residency_values(p)).warps == 24;
}

// Makes the tile as tall as the tensor. A thread has 16 elements, or 32 if 64 rows would otherwise
// need more threads than are soon started.
void fit_few_rows(QuantizeConfig& c, const TileCase& t) {
  constexpr int kResidentWarps = 16;
  while (c.tile_rows < t.rows) c.tile_rows *= 2;
  c.threads = std::min(8 * c.tile_rows, 256);
  c.blocks_per_sm = t.warps_on_device(kResidentWarps) * kWarp / c.threads;
}

// Common to tiles of few rows and of half the width, which are for tensors of few tiles.
constexpr Tile kFewRows{.rows = 16, .cols = 128, .threads = 128, .warps = 16, .copies_apart = 1};
constexpr Tile half_width(int threads, int warps) {
  return {.rows = 128,
          .cols = 64,
          .threads = threads,
          .warps = warps,
          .rows_fastest_if_transposed = true,
          .copies_apart = 2};
}
// Tiles with a transposed copy. If it is alone, it is fastest if neighbours down the rows write
// neighbouring pieces of its rows. Beside a row-wise copy, neighbours along the rows are faster.
constexpr Tile staged(int threads, int warps, TileKind kind) {
  return {.rows = 128,
          .cols = 128,
          .threads = threads,
          .warps = warps,
          .kind = kind,
          .rows_fastest_if_transposed = true,
          .orders_scales = true};
}
constexpr Tile kRowwiseTile{.rows = 128, .cols = 128, .kind = TileKind::kRowwise};
constexpr Tile rowwise(int threads, int warps) {
  Tile tile = kRowwiseTile;
  tile.threads = threads;
  tile.warps = warps;
  return tile;
}
constexpr Tile kHalvesTile = [] {
  Tile tile = staged(512, 0, TileKind::kHalves);
  tile.halves_together = true;
  return tile;
}();
constexpr Tile kWaveOfFour = [] {
  Tile tile = staged(256, 24, TileKind::kStaged);
  tile.rows_fastest_if_transposed = false;
  return tile;
}();

constexpr TilesPerSm tiles_of_128(double above, double at_most) {
  return {.rows = 128, .above = above, .at_most = at_most};
}
constexpr TilesPerSm kOneWaveOf16Bits = tiles_of_128(-1, 1);
constexpr TilesPerSm kOneWaveOfFp32 = tiles_of_128(-1, 0.5);

constexpr std::string_view kFewRowsReason =
    "a tile as tall as the tensor: a thread with fewer elements is done sooner";
constexpr std::string_view kHalfReason =
    "64 columns: there are twice as many tiles, a thread with half as many rows is done sooner, "
    "and its registers let all tiles be resident";
constexpr std::string_view kStagedReason =
    "8 loads of a thread are in flight for any type of element, and the codes are staged for the "
    "transposed copy";

constexpr std::array kCtaTileRules = std::to_array<TileRule>({
    // Few rows. The more rows a tensor has, the more a transposed copy of 1x128 gains from
    // half-width tiles, unless there are more of them than an SM holds at once. Two copies gain
    // from those while each thread block has an SM of its own.
    {.name = "few_rows_two_copies",
     .needs = parts_copies,
     .bounds = {.rows_at_most = 32, .knows_rows = true},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = kFewRowsReason,
     .measured = "h100"},
    {.name = "few_rows_two_copies_many_tiles",
     .needs = parts_copies,
     .bounds = {.rows_at_most = 64, .knows_rows = true, .tiles = tiles_of_128(0.25, kAnyCount)},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = "as for fewer rows, because half-width tiles would share SMs",
     .measured = "h100"},
    {.name = "few_rows_copy",
     .pattern = "q=*:1x128 out=col",
     .needs = takes_few_rows,
     .bounds = {.rows_at_most = 16, .knows_rows = true},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = kFewRowsReason,
     .measured = "h200"},
    {.name = "few_rows_copy_many_tiles",
     .pattern = "q=*:1x128 out=col held=bf16|fp16",
     .needs = takes_few_rows,
     .bounds = {.rows_at_most = 32, .knows_rows = true, .tiles = tiles_of_128(1, kAnyCount)},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = "half-width tiles would not all be resident",
     .measured = "h200"},
    {.name = "few_rows_copy_many_tiles",
     .pattern = "q=*:1x128 out=col held=fp32",
     .needs = takes_few_rows,
     .bounds = {.rows_at_most = 32, .knows_rows = true, .tiles = tiles_of_128(0.5, kAnyCount)},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = "half-width tiles would not all be resident",
     .measured = "h200"},
    {.name = "few_rows_both",
     .pattern = "q=*:1x128 out=both held=fp32",
     .needs = takes_few_rows,
     .bounds = {.rows_at_most = 32, .knows_rows = true},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = kFewRowsReason,
     .measured = "h200"},
    {.name = "few_rows_both_many_tiles",
     .pattern = "q=*:1x128 out=both held=fp32",
     .needs = takes_few_rows,
     .bounds = {.rows_at_most = 64, .knows_rows = true, .tiles = tiles_of_128(0.5, kAnyCount)},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = "half-width tiles would not all be resident",
     .measured = "h200"},
    {.name = "few_rows_squares",
     .pattern = "q=*:128x128 out=row|col",
     .needs = takes_few_rows,
     .bounds = {.rows_at_most = 64, .knows_rows = true},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = kFewRowsReason,
     .measured = "h200"},
    {.name = "few_rows_squares",
     .pattern = "q=*:128x128 out=both held=fp32",
     .needs = takes_few_rows,
     .bounds = {.rows_at_most = 64, .knows_rows = true},
     .tile = kFewRows,
     .fit = fit_few_rows,
     .reason = kFewRowsReason,
     .measured = "h200"},

    // Tiles of 64 columns, for tensors that give an SM one tile of 128 columns at most.
    {.name = "half_width_two_copies",
     .needs = parts_copies,
     .bounds = {.knows_rows = true, .tiles = tiles_of_128(0.5, 1)},
     .tile = half_width(128, 16),
     .reason = "of more than two blocks an SM, smaller ones are more evenly spread",
     .measured = "h100"},
    {.name = "half_width_copy",
     .pattern = "x=bf16|fp16 q=*:tensor|row|1x128|128x128|1x32 out=col",
     .needs = takes_half_width_tiles,
     .bounds = {.knows_rows = true, .tiles = kOneWaveOf16Bits},
     .tile = half_width(128, 16),
     .reason = "the transposed copy of 16-bit elements alone is faster with fewer threads",
     .measured = "h200"},
    {.name = "half_width_rows",
     .pattern = "x=bf16|fp16 q=*:tensor|row|1x128|128x128|1x32 out=row",
     .needs = takes_half_width_tiles,
     .bounds = {.knows_rows = true, .tiles = tiles_of_128(0.75, 1)},
     .tile = half_width(512, 16),
     .reason = "most SMs have two tiles, and the row-wise copy is faster with more threads",
     .measured = "h200"},
    {.name = "half_width",
     .pattern = "held=bf16|fp16",
     .needs = takes_half_width_tiles,
     .bounds = {.knows_rows = true, .tiles = kOneWaveOf16Bits},
     .tile = half_width(256, 16),
     .reason = kHalfReason,
     .measured = "h200"},
    {.name = "half_width_fp32",
     .pattern = "held=fp32",
     .needs = takes_half_width_tiles,
     .bounds = {.knows_rows = true, .tiles = kOneWaveOfFp32},
     .tile = half_width(256, 8),
     .reason = kHalfReason,
     .measured = "h200"},

    // A transposed copy of fp32 values.
    {.name = "halves_together",
     .pattern = "held=fp32",
     .needs = patch_fits_by_halves,
     .bounds = {.tiles = tiles_of_128(2, kAnyCount)},
     .tile = kHalvesTile,
     .reason =
         "a thread block computes both halves of the same columns from one read of the inputs",
     .measured = "h200"},
    {.name = "patch",
     .pattern = "held=fp32",
     .needs = patch_fits,
     .tile = staged(512, 32, TileKind::kPatch),
     .reason = "two blocks of 512 threads fit an SM",
     .measured = "h200"},
    {.name = "halves_together",
     .pattern = "held=fp32",
     .needs = may_take_halves_together,
     .bounds = {.tiles = tiles_of_128(2, kAnyCount)},
     .tile = kHalvesTile,
     .reason =
         "a thread block computes both halves of the same columns from one read of the inputs",
     .measured = "h200"},
    {.name = "patch_alone",
     .pattern = "held=fp32",
     .needs = has_a_copy,
     .tile = staged(512, 16, TileKind::kPatch),
     .reason = "a thread needs more than 64 registers, so one block of 512 threads fits an SM"},

    // A transposed copy of 16-bit elements or codes.
    {.name = "staged_two_an_sm",
     .pattern = "out=both",
     .bounds = {.knows_rows = true, .tiles = tiles_of_128(-1, 2)},
     .tile = staged(256, 16, TileKind::kStaged),
     .reason =
         "two tiles an SM are all there are, and a third must not find room beside two others",
     .measured = "h100"},
    {.name = "staged_wave_of_four",
     .needs = stages_by_fours,
     .bounds = {.knows_rows = true, .tiles = tiles_of_128(3, 4)},
     .tile = kWaveOfFour,
     .reason = "these tiles would take one wave of four an SM, in which all loads come first",
     .measured = "h100"},
    {.name = "staged",
     .needs = has_a_copy,
     .tile = staged(256, 0, TileKind::kStaged),
     .reason = kStagedReason,
     .measured = "h200"},

    // No transposed copy.
    {.name = "one_tile_an_sm",
     .pattern = "held=bf16|fp16 q=*:tensor|row|1x128|128x128|1x32 dbias=0",
     .bounds = {.knows_rows = true, .tiles = tiles_of_128(-1, 1)},
     .tile = rowwise(512, 32),
     .reason = "more threads with fewer loads each finish a tile sooner; 1024 of bf16 lose that at "
               "the barrier",
     .measured = "h200"},
    {.name = "one_tile_an_sm",
     .pattern = "held=fp32 q=*:tensor|row|1x128|128x128|1x32 dbias=0",
     .bounds = {.knows_rows = true, .tiles = tiles_of_128(-1, 1)},
     .tile = rowwise(1024, 32),
     .reason = "more threads with fewer loads each finish a tile sooner",
     .measured = "h200"},
    {.name = "two_tiles_an_sm",
     .pattern = "held=bf16|fp16",
     .needs = has_80_registers,
     .bounds = {.knows_rows = true, .tiles = tiles_of_128(-1, 2)},
     .tile = rowwise(256, 32),
     .reason = "both tiles of an SM are resident with room for more warps",
     .measured = "h100"},
    {.name = "rowwise",
     .pattern = "held=bf16|fp16",
     .tile = rowwise(256, 0),
     .reason = "8 loads of a thread are in flight",
     .measured = "h200"},
    {.name = "rowwise_fp32",
     .tile = rowwise(512, 0),
     .reason = "8 loads of a thread are in flight for any type of element"},
});

}  // namespace

bool parts_copies(const QuantizeProblem& p) {
  return may_write_copies_apart(p) && takes_few_rows(p) && p.x.dtype != DType::kFP32;
}

std::span<const TileRule> cta_tile_rules() { return kCtaTileRules; }

}  // namespace octile
