#include <algorithm>
#include <array>

#include "generator/core/layout.h"
#include "generator/quantize/composition.h"
#include "generator/quantize/tile_rules.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

constexpr int kMostRowThreads = 512;

// Sets the blocks of an SM to this number of warps of a measured card, and at most `most`.
void share_warps(QuantizeConfig& c, const TileCase& t, int warps, int most) {
  c.blocks_per_sm = std::clamp(t.warps_on_device(warps) * kWarp / c.threads, 1, most);
}

// Doubles the threads until a row takes 8 loads of each, which keep 8 blocks resident.
void hold_row(QuantizeConfig& c, const TileCase& t) {
  constexpr std::int64_t kMostLoads = 8;  // 32 registers of input
  const std::int64_t cols = t.problem.cols;
  const std::int64_t elements = elements_per_vector(t.problem);
  while (c.threads < kMostRowThreads && c.threads * elements * kMostLoads < cols) c.threads *= 2;
  const std::int64_t step = c.threads * elements;
  const std::int64_t loads = std::clamp<std::int64_t>(ceil_div(cols, step), 1, kMostLoads);
  c.tile_cols = static_cast<int>(step * loads);
  share_warps(c, t, residency_of(TileKind::kRow, t.values).warps, t.device.blocks_per_sm);
}

// How a thread block shares out a row that it norms.
struct NormShare {
  int threads;
  std::int64_t pieces;  // pieces of 8 columns in the registers of a thread
};

// Doubles the threads until a row takes two pieces of each, or 8 pieces from 128 threads on.
NormShare share_norm_row(std::int64_t cols) {
  constexpr std::int64_t kMostPieces = 8;  // 64 registers of values
  constexpr int kEnoughThreads = 128;      // before a thread takes more than two pieces
  int threads = kWarp;
  const auto pieces = [&] { return ceil_div(cols, std::int64_t{threads} * kStreamedElements); };
  while (threads < kMostRowThreads && pieces() > (threads < kEnoughThreads ? 2 : kMostPieces)) {
    threads *= 2;
  }
  return {threads, std::clamp<std::int64_t>(pieces(), 1, kMostPieces)};
}

// A thread that holds more than four pieces has 96 registers and not 72.
bool norms_long_rows(const QuantizeProblem& p) { return share_norm_row(p.cols).pieces > 4; }

void hold_norm_row(QuantizeConfig& c, const TileCase& t) {
  const NormShare share = share_norm_row(t.problem.cols);
  c.threads = share.threads;
  c.tile_cols = static_cast<int>(share.threads * share.pieces * kStreamedElements);
  const TileKind kind = norms_long_rows(t.problem) ? TileKind::kLongNorm : TileKind::kNorm;
  share_warps(c, t, residency_of(kind, t.values).warps, 16);
}

constexpr std::array kRowRules = std::to_array<TileRule>({
    {.name = "row",
     .tile = {.rows = 1, .threads = kWarp, .kind = TileKind::kRow},
     .fit = hold_row,
     .reason = "a row in the registers of one thread block, in as few loads a thread as keep 8 "
               "blocks resident"},
});

constexpr TileBounds kFewNormRows{.knows_rows = true, .tiles = {.rows = 1, .below = 4}};
constexpr std::string_view kFewNormReason = "one row a block, so that rows spread over the SMs";

constexpr std::array kNormRules = std::to_array<TileRule>({
    {.name = "norm_few_long_rows",
     .needs = norms_long_rows,
     .bounds = kFewNormRows,
     .tile = {.rows = 1, .threads = kWarp, .kind = TileKind::kLongNorm},
     .fit = hold_norm_row,
     .reason = kFewNormReason,
     .measured = "h200"},
    {.name = "norm_few_rows",
     .bounds = kFewNormRows,
     .tile = {.rows = 1, .threads = kWarp, .kind = TileKind::kNorm},
     .fit = hold_norm_row,
     .reason = kFewNormReason,
     .measured = "h200"},
    {.name = "norm_long_rows",
     .needs = norms_long_rows,
     .tile = {.rows = 2, .threads = kWarp, .kind = TileKind::kLongNorm},
     .fit = hold_norm_row,
     .reason = "a block takes two rows, and the next is on its way while one is worked on",
     .measured = "h200"},
    {.name = "norm_rows",
     .tile = {.rows = 4, .threads = kWarp, .kind = TileKind::kNorm},
     .fit = hold_norm_row,
     .reason = "a block takes four rows, and the next is on its way while one is worked on",
     .measured = "h200"},
});

constexpr std::array kRangeRules = std::to_array<TileRule>({
    {.name = "range",
     .tile = {.rows = 8, .threads = 128, .warps = 20},
     .reason = "the range's first and last element take registers"},
});

constexpr std::array kScalesRules = std::to_array<TileRule>({
    {.name = "scales",
     .tile = {.rows = 1, .cols = 256, .threads = 256, .warps = 32},
     .reason = "a thread has one block, of which there are few"},
});

constexpr std::array kTransposeRules = std::to_array<TileRule>({
    {.name = "small_transpose",
     .bounds = {.knows_rows = true, .tiles = {.rows = 256, .below = 3}},
     .tile = {.rows = 128, .cols = 128, .threads = 128, .warps = 24, .rows_fastest = true},
     .reason = "SMs that have fewer than three of the larger tiles need smaller ones to hide each "
               "other's barriers",
     .measured = "h200"},
    {.name = "transpose",
     .tile = {.rows = 256, .cols = 128, .threads = 256, .warps = 24, .rows_fastest = true},
     .reason = "16-byte loads of 8 rows a thread; neighbours write neighbouring pieces of the same "
               "rows of the copy",
     .measured = "h200"},
});

}  // namespace

std::span<const TileRule> row_rules() { return kRowRules; }
std::span<const TileRule> norm_rules() { return kNormRules; }
std::span<const TileRule> range_rules() { return kRangeRules; }
std::span<const TileRule> scales_rules() { return kScalesRules; }
std::span<const TileRule> transpose_rules() { return kTransposeRules; }

}  // namespace octile
