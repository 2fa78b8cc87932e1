#include "generator/quantize/candidates.h"

#include <algorithm>
#include <array>
#include <utility>

#include "generator/quantize/cost.h"
#include "generator/quantize/loads.h"

namespace octile {
namespace {

// ---- axes

constexpr std::array kTileRows{1, 2, 4, 8, 16, 32, 64, 128, 256};
// The widest tile over the narrowest, unless the default is wider.
constexpr int kWidest = 4;
constexpr std::array kThreads{32, 64, 128, 256, 512, 1024};
constexpr std::array kWarpCountsOfAnSm{8, 16, 24, 32, 48, 64};

// ---- constraints

bool template_takes_it(const QuantizeConfig& c, const QuantizeSetting& s) {
  return check_config(s.problem, c, s.device).has_value();
}
bool blocks_fit_sm(const QuantizeConfig& c, const QuantizeSetting& s) {
  return c.blocks_per_sm <= s.device.blocks_per_sm;
}
bool registers_hold_tile(const QuantizeConfig& c, const QuantizeSetting& s) {
  constexpr int kOthers = 32;
  // Registers are allocated to a warp in units of 256.
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
  const QuantizeConfig usual = default_config(s.problem, s.tokens, s.device);
  return (c.tile_rows <= usual.tile_rows || c.tile_rows < 2 * s.tokens) &&
         (c.tile_cols <= usual.tile_cols || c.tile_cols < 2 * s.problem.cols);
}

bool lone_warps_share_small_blocks(const QuantizeConfig& c, const QuantizeSetting& s) {
  return !works_by_lone_warps(s.problem) || c.looks_up || c.threads <= 256;
}

constexpr std::array kConstraints{
    QuantizeConstraint{
        "template_takes_it",
        "the kernel's template holds such a tile in this number of threads, in 1 to 16 "
        "loads each, visits tiles in that order, and has a table, scales put in "
        "order behind, both halves at once, or a thread block for each copy, where "
        "these are asked for",
        template_takes_it},
    QuantizeConstraint{"lone_warps_share_small_blocks",
                       "warps that work alone share blocks of at most 256 threads, but for a "
                       "table: more only wait for the last of them (blocks of 2 warps beat 8 by "
                       "1 %, measured)",
                       lone_warps_share_small_blocks},
    QuantizeConstraint{"blocks_fit_sm", "an SM of the device holds this number of thread blocks",
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

// Returns the narrowest of the widths to try, each of which is twice the one before.
int narrowest(const QuantizeConfig& usual, const QuantizeProblem& p) {
  return works_by_lone_warps(p) && !streams_rows(p) ? warp_columns(p) : usual.tile_cols;
}

// Returns the columns of a tile that is a whole row, in as few loads as hold it.
int whole_row(const QuantizeConfig& usual, const QuantizeProblem& p, int threads) {
  constexpr std::int64_t kMostLoads = 16;
  const std::int64_t step = usual.tile_cols / loads_of_a_thread(usual, p) / usual.threads * threads;
  return static_cast<int>(step * std::clamp<std::int64_t>(ceil_div(p.cols, step), 1, kMostLoads));
}

// The values that one axis each may have: a part of a source is looked up, scales are ordered
// behind, halves are taken together, copies have a thread block each.
struct Switches {
  explicit Switches(const QuantizeProblem& p)
      : tables(lookup_of(p) != nullptr ? 2 : 1),
        orders(may_order_scales(p) ? 2 : 1),
        pairs(may_take_halves_together(p) ? 2 : 1),
        copies(may_write_copies_apart(p) ? 2 : 1) {}

  int combinations() const { return tables * orders * pairs * copies; }
  void apply(int combination, QuantizeConfig& c) const {
    c.looks_up = combination % tables != 0;
    c.orders_scales = combination / tables % orders != 0;
    c.halves_together = combination / tables / orders % pairs != 0;
    c.copies_apart = combination / tables / orders / pairs != 0;
  }

  int tables, orders, pairs, copies;
};

// Walks the axes, the last of them fastest, behind the default.
class Enumeration {
 public:
  explicit Enumeration(const QuantizeSetting& setting)
      : setting_(setting),
        usual_(default_config(setting.problem, setting.tokens, setting.device)),
        by_rows_(holds_whole_rows(setting.problem)),
        switches_(setting.problem),
        census_(kConstraints) {}

  QuantizeCandidates run() && {
    census_.admit(usual_);
    const int first = narrowest(usual_, setting_.problem);
    const int last = by_rows_ ? first : std::max(kWidest * first, usual_.tile_cols);
    for (const int rows : kTileRows) {
      config_.tile_rows = rows;
      for (int width = first; width <= last; width *= 2) try_tile(width);
    }
    return std::move(census_).result();
  }

 private:
  void try_tile(int width) {
    for (const int threads : kThreads) {
      config_.threads = threads;
      config_.tile_cols = by_rows_ ? whole_row(usual_, setting_.problem, threads) : width;
      for (const int warps : kWarpCountsOfAnSm) {
        if (warps % (threads / kWarp) != 0) continue;
        config_.blocks_per_sm = warps / (threads / kWarp);
        try_orders();
      }
    }
  }

  void try_orders() {
    for (const bool down : {false, true}) {
      config_.rows_fastest = down;
      for (int i = 0; i < switches_.combinations(); ++i) {
        switches_.apply(i, config_);
        try_config();
      }
    }
  }

  void try_config() {
    if (config_ == usual_) return;
    const QuantizeConstraint* refusal = first_refusal(quantize_constraints(), config_, setting_);
    if (refusal == nullptr) {
      census_.admit(config_);
    } else {
      census_.remove(*refusal);
    }
  }

  QuantizeSetting setting_;
  QuantizeConfig usual_;
  bool by_rows_;  // a tile is a whole row
  Switches switches_;
  Census<QuantizeProblem, QuantizeConfig> census_;
  QuantizeConfig config_;
};

}  // namespace

std::span<const QuantizeConstraint> quantize_constraints() { return kConstraints; }

const QuantizeConstraint* refused_by(const QuantizeConfig& config, const QuantizeProblem& problem,
                                     std::int64_t tokens, const DeviceSpec& device) {
  return first_refusal(quantize_constraints(), config, {problem, tokens, device});
}

std::optional<std::string> rejection_reason(const QuantizeConfig& config,
                                            const QuantizeProblem& problem, std::int64_t /*tokens*/,
                                            const DeviceSpec& device) {
  const Status ok = check_config(problem, config, device);
  return ok ? std::nullopt : std::optional(ok.error().message);
}

QuantizeCandidates candidates(const QuantizeProblem& problem, std::int64_t tokens,
                              const DeviceSpec& device) {
  return Enumeration({problem, tokens, device}).run();
}

}  // namespace octile
