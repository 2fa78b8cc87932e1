#include <fmt/format.h>

#include <algorithm>

#include "generator/core/layout.h"
#include "generator/quantize/composition.h"
#include "generator/quantize/cost.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/resources.h"
#include "generator/quantize/tile_rules.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

std::span<const TileRule> rules_of(QuantizeTemplate body) {
  switch (body) {
    case QuantizeTemplate::kWarpTile:
    case QuantizeTemplate::kDequantize:
    case QuantizeTemplate::kGather:
      return warp_tile_rules();
    case QuantizeTemplate::kCtaTile:
      return cta_tile_rules();
    case QuantizeTemplate::kCtaRow:
      return row_rules();
    case QuantizeTemplate::kNormRows:
      return norm_rules();
    case QuantizeTemplate::kRange:
      return range_rules();
    case QuantizeTemplate::kScales:
      return scales_rules();
    case QuantizeTemplate::kTranspose:
      return transpose_rules();
  }
  return {};
}

// Returns the columns of the tiles that bounds count.
int counted_columns(const QuantizeProblem& p) {
  if (works_by_warps(p)) return warp_columns(p);
  if (holds_whole_rows(p)) return static_cast<int>(std::max<std::int64_t>(p.cols, 1));
  return kScaleBlock;
}

bool holds(const TilesPerSm& bound, const TileCase& t) {
  if (bound.rows == 0) return true;
  const double tiles = t.tiles_per_sm(bound.rows, counted_columns(t.problem));
  return tiles > bound.above && tiles >= bound.least && tiles <= bound.at_most &&
         tiles < bound.below;
}

bool holds(const TileBounds& b, const TileCase& t) {
  if (b.knows_rows && !t.knows_rows()) return false;
  if (b.needs_clusters && !t.device.has_clusters) return false;
  const QuantizeProblem& p = t.problem;
  const double elements = static_cast<double>(t.rows) * static_cast<double>(p.cols);
  const auto has_few_units = [&] {
    return t.rows * ceil_div(p.cols, warp_columns(p)) <= b.units_at_most;
  };
  return t.rows <= b.rows_at_most &&
         (!b.knows_rows || elements >= b.elements_per_sm_at_least * t.device.sm_count) &&
         (b.units_at_most == TileBounds().units_at_most || has_few_units()) && holds(b.tiles, t) &&
         holds(b.also, t);
}

const TileRule& rule_of(const TileCase& t) {
  return *std::ranges::find_if(rules_of(template_of(t.problem)), [&](const TileRule& rule) {
    return matches_values(rule.pattern, t.values) &&
           (rule.needs == nullptr || rule.needs(t.problem)) && holds(rule.bounds, t);
  });
}

void shorten(QuantizeConfig& c, const Shortening& step, const TileCase& t) {
  const int warps = c.threads / kWarp;  // whole ones
  const double resident = c.blocks_per_sm * warps;
  const double wanted = step.tiles_per_sm * (step.in_waves ? resident : 1);
  const bool may =
      !step.only_if_resident || (c.tile_rows == 2 && t.tiles_per_sm(1, c.tile_cols) <= resident);
  while (may && c.tile_rows > step.least && t.tiles_per_sm(c.tile_rows, c.tile_cols) < wanted) {
    c.tile_rows /= 2;
  }
}

// Returns whether ordering the scales of both copies saves more time than the additional kernel
// takes: memory must be the limit. The stride of the row-wise scales is known here; order_blocks
// tests that of the transposed ones at each launch.
bool pays_to_order_scales(const QuantizeProblem& p, std::int64_t rows) {
  constexpr std::int64_t kEnough = std::int64_t{1} << 24;  // elements
  return rows != kDynamic && rows * p.cols >= kEnough && may_order_scales(p) &&
         p.output == QuantizeOutput::kBoth && p.source.empty() && !holds_codes(p) &&
         packed_scale_ld(p.q, rows, p.cols, false) % kOrderAlign == 0;
}

// Gives each copy of the tiles a thread block, if all blocks are resident at once. More of them
// would read x again for nothing.
bool pays_to_part_copies(const QuantizeConfig& c, const TileCase& t, int tiles_in_128) {
  if (tiles_in_128 == 0 || !parts_copies(t.problem)) return false;
  return 2 * tiles_in_128 * t.tiles_per_sm(kScaleBlock, kScaleBlock) <= c.blocks_per_sm;
}

// Lets fewer thread blocks be resident where an SM has less shared memory than they take.
void fit_shared_memory(QuantizeConfig& c, const TileCase& t) {
  const int bytes = resident_smem_bytes(t.problem, c) + kReservedSmemPerBlock;
  c.blocks_per_sm = std::clamp(t.device.smem_per_sm_bytes / bytes, 1, c.blocks_per_sm);
}

int tile_columns(const Tile& tile, const QuantizeProblem& p) {
  if (tile.cols > 0) return tile.cols;
  return streams_rows(p) ? streamed_columns(p) : warp_columns(p);
}

QuantizeConfig tile_of(const TileRule& rule, const TileCase& t) {
  const Tile& tile = rule.tile;
  const QuantizeProblem& p = t.problem;
  QuantizeConfig c;
  c.tile_rows = tile.rows;
  c.tile_cols = tile_columns(tile, p);
  c.threads = tile.threads;
  const int warps = tile.warps > 0 ? tile.warps : residency_of(tile.kind, t.values).warps;
  c.blocks_per_sm = std::max(1, t.warps_on_device(warps) * kWarp / c.threads);
  c.rows_fastest = tile.rows_fastest ||
                   (tile.rows_fastest_if_transposed && p.output == QuantizeOutput::kTransposed);
  c.looks_up = tile.looks_up;
  c.halves_together = tile.halves_together;
  if (rule.fit != nullptr) rule.fit(c, t);
  for (const Shortening& step : tile.shorten) shorten(c, step, t);
  if (tighter_of(t.values) != nullptr) {
    c.blocks_per_sm = std::max(1, c.blocks_per_sm - (c.blocks_per_sm + 3) / 4);
  }
  c.orders_scales = tile.orders_scales && pays_to_order_scales(p, t.rows);
  c.copies_apart = pays_to_part_copies(c, t, tile.copies_apart);
  fit_shared_memory(c, t);
  return c;
}

}  // namespace

TileCase::TileCase(const QuantizeProblem& p, std::int64_t row_count, const DeviceSpec& d)
    : problem(p),
      rows(p.pieces == PiecesStep::kNone ? row_count : kDynamic),
      device(d),
      values(residency_values(p)) {
  for (const FieldValue& value : device_values(d)) values.push_back(value);
}

bool TileCase::knows_rows() const { return rows != kDynamic; }

int TileCase::warps_on_device(int warps) const {
  const std::int64_t warps_by_registers =
      std::int64_t{warps} * device.registers_per_sm / kMeasuredRegisters;
  return static_cast<int>(
      std::min<std::int64_t>(warps_by_registers, device.threads_per_sm / kWarp));
}

double TileCase::tiles_per_sm(int tile_rows, int tile_cols) const {
  if (!knows_rows()) return std::numeric_limits<double>::max();
  const std::int64_t tiles = ceil_div(rows, tile_rows) * ceil_div(problem.cols, tile_cols);
  return static_cast<double>(tiles) / device.sm_count;
}

const TileRule& default_rule(const QuantizeProblem& problem, std::int64_t rows,
                             const DeviceSpec& device) {
  return rule_of(TileCase(problem, rows, device));
}

QuantizeConfig default_config(const QuantizeProblem& problem, std::int64_t rows,
                              const DeviceSpec& device) {
  const TileCase t(problem, rows, device);
  return tile_of(rule_of(t), t);
}

std::string default_reason(const QuantizeProblem& problem, std::int64_t rows,
                           const DeviceSpec& device) {
  const TileCase t(problem, rows, device);
  const TileRule& rule = rule_of(t);
  std::string text = fmt::format("the default row '{}': {}", rule.name, rule.reason);
  if (rule.tile.warps == 0) {
    const ResidencyRow& row = residency_of(rule.tile.kind, t.values);
    text += fmt::format("; {} warps an SM: {}", row.warps, row.reason);
  }
  if (const TighterRow* tighter = tighter_of(t.values)) {
    text += fmt::format("; a quarter fewer blocks: {}", tighter->reason);
  }
  return text + (rule.measured.empty() ? "; not measured"
                                       : fmt::format("; measured on an {}", rule.measured));
}

}  // namespace octile
