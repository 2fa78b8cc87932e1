#include "generator/quantize/cost.h"

#include <algorithm>
#include <cmath>

#include "generator/quantize/fused_source.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/loads.h"

namespace octile {
namespace {

// Microseconds of a thread block from its launch to its first load.
constexpr double kBlockStartUs = 1.0;
// The share of the time that a doubling of anything away from the default counts as.
constexpr double kUnlikeness = 0.005;

// Returns the bytes of a tensor without groups, scales excluded.
double bytes_moved(const QuantizeConfig& c, const QuantizeProblem& p, std::int64_t rows) {
  const SourceShape source = source_shape(p.source);
  const int passes = (first_pass_of(p, c) == FirstPass::kNone ? 1 : 2) + (c.copies_apart ? 1 : 0);
  const double read = passes * source.streams() * size_of(p.x.dtype) / (source.halves ? 2.0 : 1.0);
  const int outputs = p.output == QuantizeOutput::kBoth ? 2 : 1;
  return static_cast<double>(rows) * static_cast<double>(p.cols) *
         (read + outputs * size_of(p.q.dtype));
}

double doublings(int a, int b) { return std::fabs(std::log2(static_cast<double>(a) / b)); }

double unlikeness(const QuantizeConfig& c, const QuantizeConfig& usual) {
  return doublings(c.tile_rows, usual.tile_rows) + doublings(c.tile_cols, usual.tile_cols) +
         doublings(c.threads, usual.threads) +
         doublings(c.threads * c.blocks_per_sm, usual.threads * usual.blocks_per_sm) +
         (c.rows_fastest == usual.rows_fastest ? 0 : 1) + (c.looks_up == usual.looks_up ? 0 : 1) +
         (c.orders_scales == usual.orders_scales ? 0 : 1) +
         (c.halves_together == usual.halves_together ? 0 : 1) +
         (c.copies_apart == usual.copies_apart ? 0 : 1) + (c.cluster == usual.cluster ? 0 : 1);
}

double estimate_beside(const QuantizeConfig& usual, const QuantizeConfig& c,
                       const QuantizeProblem& p, std::int64_t rows, const DeviceSpec& device) {
  // The first pass, groups and their padding are the same for every configuration.
  const auto blocks = launch_blocks(p, c, rows, 1);
  const double count = blocks ? std::max(1.0, static_cast<double>(*blocks)) : 1;
  const double resident = static_cast<double>(c.blocks_per_sm) * device.sm_count;
  const double in_flight =
      std::min(count, resident) *
      static_cast<double>(std::int64_t{c.threads} * kVectorBytes * loads_of_a_thread(c, p));
  const double dram = device.dram_tbps * 1e6;  // bytes a microsecond
  const double bytes = bytes_moved(c, p, rows);
  const double stream = bytes / std::min(dram, in_flight / kLoadedLatencyUs);
  // A wave of few blocks costs a start as a whole one does.
  const double waves =
      c.looks_up ? 1 : count / resident;  // blocks with a table go on to further tiles
  const double starts = kBlockStartUs * std::ceil(waves) / std::max(1.0, waves);
  return (device.launch_us + kLoadedLatencyUs + starts + stream) *
         (1 + kUnlikeness * unlikeness(c, usual));
}

}  // namespace

double estimate_us(const QuantizeConfig& c, const QuantizeProblem& p, std::int64_t rows,
                   const DeviceSpec& device) {
  return estimate_beside(default_config(p, rows, device), c, p, rows, device);
}

std::vector<double> estimates_us(const std::vector<QuantizeConfig>& configs,
                                 const QuantizeProblem& p, std::int64_t rows,
                                 const DeviceSpec& device) {
  const QuantizeConfig usual = default_config(p, rows, device);
  std::vector<double> all;
  all.reserve(configs.size());
  for (const QuantizeConfig& c : configs) all.push_back(estimate_beside(usual, c, p, rows, device));
  return all;
}

}  // namespace octile
