#include "generator/quantize/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "generator/gemm/cost.h"
#include "generator/quantize/fused_source.h"

namespace octile {
namespace {

constexpr int kWarp = 32;
constexpr int kVectorBytes = 16;   // one load of a thread
constexpr int kBlocksOfAnSm = 32;  // CUDA C++ Programming Guide, compute capability 9.0

// ---- axes

constexpr std::array kTileRows{1, 2, 4, 8, 16, 128, 256};
constexpr int kWidest = 4;  // times the narrowest tile, or the default where that is wider
constexpr std::array kThreads{32, 64, 128, 256, 512, 1024};
constexpr std::array kWarpsOfAnSm{8, 16, 24, 32, 48, 64};

// ---- constraints

// Microseconds from a load to its data where memory is busy (as quantize_cost.cc has it).
constexpr double kLoadedLatencyUs = 1.0;

std::int64_t loads_of_a_thread(const QuantizeConfig& c, const QuantizeProblem& p) {
  return resources_of(p, c).vectors_per_thread;
}

bool template_takes_it(const QuantizeConfig& c, const QuantizeSetting& s) {
  return check_config(s.problem, c).has_value();
}
bool blocks_fit_sm(const QuantizeConfig& c, const QuantizeSetting&) {
  return c.blocks_per_sm <= kBlocksOfAnSm;
}
bool registers_hold_tile(const QuantizeConfig& c, const QuantizeSetting& s) {
  constexpr int kOthers = 32;
  // Handed out to a warp in units of 256.
  const int registers = s.device.registers_per_sm / (c.threads * c.blocks_per_sm) / 8 * 8;
  return registers >= kOthers + kVectorBytes / 4 * loads_of_a_thread(c, s.problem);
}
bool loads_fill_memory(const QuantizeConfig& c, const QuantizeSetting& s) {
  const double needed = s.device.dram_tbps * 1e6 * kLoadedLatencyUs / s.device.sm_count;
  const auto in_flight = static_cast<double>(std::int64_t{c.threads} * c.blocks_per_sm *
                                             kVectorBytes * loads_of_a_thread(c, s.problem));
  return in_flight >= needed / 2;
}
bool tile_fits_tensor(const QuantizeConfig& c, const QuantizeSetting& s) {
  const QuantizeConfig usual = default_config(s.problem, s.rows, s.device);
  return (c.tile_rows <= usual.tile_rows || c.tile_rows < 2 * s.rows) &&
         (c.tile_cols <= usual.tile_cols || c.tile_cols < 2 * s.problem.cols);
}

bool lone_warps_share_small_blocks(const QuantizeConfig& c, const QuantizeSetting& s) {
  const QuantizeTemplate t = template_of(s.problem);
  const bool alone = t == QuantizeTemplate::kSegments || t == QuantizeTemplate::kDequantize;
  return !alone || c.looks_up || c.threads <= 256;
}

constexpr std::array kConstraints{
    QuantizeConstraint{"template_takes_it",
                       "the kernel's template holds such a tile in so many threads, in 1 to 16 "
                       "loads each, visits tiles in that order, and has a table, scales put in "
                       "order behind, or both halves at once, where these are asked for",
                       template_takes_it},
    QuantizeConstraint{"lone_warps_share_small_blocks",
                       "warps that work alone share blocks of at most 256 threads, but for a "
                       "table: more only wait for the last of them (blocks of 2 warps beat 8 by "
                       "1 %, measured)",
                       lone_warps_share_small_blocks},
    QuantizeConstraint{"blocks_fit_sm", "32 thread blocks are resident on an SM at most",
                       blocks_fit_sm},
    QuantizeConstraint{"tile_fits_tensor",
                       "no tile larger than the default's lies for the most part outside of the "
                       "tensor",
                       tile_fits_tensor},
    QuantizeConstraint{"registers_hold_tile",
                       "an SM's registers over its resident threads hold a thread's loads and 32 "
                       "beside (below, ptxas 13.0 spills)",
                       registers_hold_tile},
    QuantizeConstraint{"loads_fill_memory",
                       "resident threads have half of bandwidth times latency in flight (1 us)",
                       loads_fill_memory},
};

// ---- enumeration

// Of the widths that are tried, each twice the one before.
int narrowest(const QuantizeConfig& usual, const QuantizeProblem& p) {
  const QuantizeTemplate t = template_of(p);
  const bool alone = t == QuantizeTemplate::kSegments || t == QuantizeTemplate::kDequantize;
  return alone && !streams_rows(p) ? warp_columns(p) : usual.tile_cols;
}

// A row in as few loads as hold it.
int whole_row(const QuantizeConfig& usual, const QuantizeProblem& p, int threads) {
  constexpr std::int64_t kMostLoads = 16;
  const std::int64_t step = usual.tile_cols / loads_of_a_thread(usual, p) / usual.threads * threads;
  return static_cast<int>(step * std::clamp<std::int64_t>(ceil_div(p.cols, step), 1, kMostLoads));
}

// ---- cost

// Of one thread block, from its launch to its first load.
constexpr double kBlockStartUs = 1.0;
// A doubling of anything away from the default costs as much as this share of the time.
constexpr double kUnlikeness = 0.005;

// Of a tensor without groups; scales excluded.
double bytes_moved(const QuantizeProblem& p, std::int64_t rows) {
  const SourceShape source = source_shape(p.source);
  const int passes = first_pass_of(p) == FirstPass::kNone ? 1 : 2;
  const double read = passes * source.inputs * size_of(p.x.dtype) / (source.halves ? 2.0 : 1.0);
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
         (c.halves_together == usual.halves_together ? 0 : 1);
}

}  // namespace

std::span<const QuantizeConstraint> quantize_constraints() { return kConstraints; }

const QuantizeConstraint* refused_by(const QuantizeConfig& c, const QuantizeSetting& s) {
  const auto it = std::ranges::find_if(
      kConstraints, [&](const QuantizeConstraint& rule) { return !rule.admits(c, s); });
  return it == kConstraints.end() ? nullptr : &*it;
}

QuantizeCandidates quantize_candidates(const QuantizeSetting& s) {
  const QuantizeConfig usual = default_config(s.problem, s.rows, s.device);
  const bool by_rows = template_of(s.problem) == QuantizeTemplate::kRows;
  const int first = narrowest(usual, s.problem);
  const int last = by_rows ? first : std::max(kWidest * first, usual.tile_cols);
  const int tables = lookup_of(s.problem) != nullptr ? 1 : 0;
  const int orders = may_order_scales(s.problem) ? 1 : 0;
  const int pairs = may_take_halves_together(s.problem) ? 1 : 0;
  const int variants = (1 + tables) * (1 + orders) * (1 + pairs);
  QuantizeCandidates result;
  for (const QuantizeConstraint& rule : kConstraints) result.removed.emplace_back(rule.name, 0);
  result.admitted.push_back(usual);
  result.enumerated = 1;
  const auto consider = [&](const QuantizeConfig& c) {
    if (c == usual) return;
    ++result.enumerated;
    const QuantizeConstraint* refusal = refused_by(c, s);
    if (refusal == nullptr) {
      result.admitted.push_back(c);
    } else {
      ++result.removed[static_cast<std::size_t>(refusal - kConstraints.data())].second;
    }
  };
  QuantizeConfig c;
  for (const int rows : kTileRows) {
    c.tile_rows = rows;
    for (int width = first; width <= last; width *= 2) {
      for (const int threads : kThreads) {
        c.threads = threads;
        c.tile_cols = by_rows ? whole_row(usual, s.problem, threads) : width;
        for (const int warps : kWarpsOfAnSm) {
          if (warps % (threads / kWarp) != 0) continue;
          c.blocks_per_sm = warps / (threads / kWarp);
          for (const bool down : {false, true}) {
            for (int variant = 0; variant < variants; ++variant) {
              c.rows_fastest = down;
              c.looks_up = variant % (1 + tables) != 0;
              c.orders_scales = variant / (1 + tables) % (1 + orders) != 0;
              c.halves_together = variant / (1 + tables) / (1 + orders) != 0;
              consider(c);
            }
          }
        }
      }
    }
  }
  return result;
}

double estimate_us(const QuantizeConfig& c, const QuantizeSetting& s) {
  const QuantizeConfig usual = default_config(s.problem, s.rows, s.device);
  // The first pass is the same whatever the configuration, and so are groups and what they pad.
  const auto blocks = launch_blocks(s.problem, c, s.rows, 1);
  const double count = blocks ? std::max(1.0, static_cast<double>(*blocks)) : 1;
  const double resident = static_cast<double>(c.blocks_per_sm) * s.device.sm_count;
  const double in_flight =
      std::min(count, resident) *
      static_cast<double>(std::int64_t{c.threads} * kVectorBytes * loads_of_a_thread(c, s.problem));
  const double dram = s.device.dram_tbps * 1e6;  // bytes a microsecond
  const double bytes = bytes_moved(s.problem, s.rows);
  const double stream = bytes / std::min(dram, in_flight / kLoadedLatencyUs);
  // A wave that is hardly there costs a start as a whole one does.
  const double waves = c.looks_up ? 1 : count / resident;  // blocks with a table stay
  const double starts = kBlockStartUs * std::ceil(waves) / std::max(1.0, waves);
  return (s.device.launch_us + kLoadedLatencyUs + starts + stream) *
         (1 + kUnlikeness * unlikeness(c, usual));
}

}  // namespace octile
