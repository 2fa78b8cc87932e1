#include "generator/cost_model.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace octile {
namespace {

// Per-SM rates of the Hopper SM, in cycles; the device's clock turns them into time.
constexpr double kFp8FlopsPerCycle = 8192;  // dense FP8 WGMMA, datasheet rate over SMs and clock
constexpr double kWgmmaLatencyCycles = 60;  // wait to first use, measured on peers' kernels
constexpr double kStepOverheadCycles = 40;  // barrier wait, descriptor arithmetic, release
constexpr double kTileOverheadCycles =
    700;                              // epilogue's registers to staging, next tile's first loads
constexpr double kFillCycles = 1500;  // first loads of a CTA: barrier setup and DRAM latency

struct Tiling {
  double waves = 0;  // full passes over the SMs, the last one whole
  double tiles = 0;
};

Tiling tiling(const GemmConfig& c, const GemmProblem& p, std::int64_t m, const DeviceSpec& d) {
  const std::int64_t cluster = c.cluster_m * c.cluster_n;
  const std::int64_t clusters = ceil_div(m, std::int64_t{c.block_m} * c.cluster_m) *
                                ceil_div(p.n, std::int64_t{c.block_n} * c.cluster_n);
  const std::int64_t slots = std::max<std::int64_t>(1, d.sm_count / cluster);
  return {static_cast<double>(ceil_div(clusters, slots)), static_cast<double>(clusters * cluster)};
}

// Cycles one CTA spends on one K-block: the tensor cores' work, and what a warpgroup cannot
// overlap.
double step_cycles(const GemmConfig& c) {
  const double strips = c.block_m / 64.0;
  const double strip_mma = 64.0 * c.block_n * 128 * 2 / kFp8FlopsPerCycle;
  const double strip_promotion = c.block_n / 2.0 + 20;  // fused multiply-adds a warp issues, scales
  const double tensor = strips * strip_mma;
  // A warpgroup alternates product and promotion; with several, one promotes while others multiply.
  const double strips_each = strips / c.consumer_warpgroups;
  const double serial =
      strips_each * (strip_mma + kWgmmaLatencyCycles + strip_promotion) + kStepOverheadCycles;
  // Promotions of all warpgroups share the schedulers' issue slots with nothing else.
  const double issue = strips * strip_promotion;
  return std::max({tensor, serial, issue});
}

}  // namespace

GemmCost estimate(const GemmConfig& c, const GemmProblem& p, std::int64_t m, const DeviceSpec& d) {
  GemmCost cost;
  const Tiling t = tiling(c, p, m, d);
  const double k_blocks = static_cast<double>(ceil_div(p.k, 128));
  const double cycles_per_us = d.clock_ghz * 1e3;
  const auto bytes_of = [](std::int64_t rows, std::int64_t cols) {
    return static_cast<double>(rows) * static_cast<double>(cols);
  };

  cost.tensor_us = t.waves * (k_blocks * step_cycles(c) + kTileOverheadCycles) / cycles_per_us;
  const double dram = bytes_of(m, p.k) + bytes_of(p.n, p.k) + 2 * bytes_of(m, p.n);
  cost.memory_us = dram / (d.dram_tbps * 1e6);
  // Each CTA pulls its tiles through L2; a multicast operand crosses once a cluster.
  const double step_bytes = 128.0 * (static_cast<double>(c.block_m) / c.cluster_n +
                                     static_cast<double>(c.block_n) / c.cluster_m);
  const double busy = std::min(1.0, t.tiles / d.sm_count);  // idle SMs pull nothing
  cost.l2_us = t.waves * d.sm_count * k_blocks * step_bytes / (d.l2_tbps * 1e6) *
               std::max(busy, t.tiles / (t.waves * d.sm_count));
  // A CTA alone cannot draw more than its share of the fabric: latency bounds bytes in flight.
  const double in_flight = c.stages * step_bytes;
  constexpr double kRoundTripCycles = 1000;
  const double stream_us =
      t.waves * k_blocks * step_bytes / in_flight * kRoundTripCycles / cycles_per_us;
  cost.fixed_us = d.launch_us + kFillCycles / cycles_per_us;
  cost.total_us = std::max({cost.tensor_us, cost.memory_us, cost.l2_us, stream_us}) + cost.fixed_us;
  return cost;
}

GemmConfig default_config(const GemmProblem& problem, std::int64_t m, const DeviceSpec& device) {
  // Ties fall to the first enumerated, which is the smaller tile without a cluster.
  GemmConfig best;
  double best_us = std::numeric_limits<double>::infinity();
  for (const GemmConfig& c : gemm_candidates(problem, device).admitted) {
    const double us = estimate(c, problem, std::max<std::int64_t>(m, 1), device).total_us;
    if (us < best_us * (1 - 1e-9)) {
      best_us = us;
      best = c;
    }
  }
  return best;
}

int bucket_of(std::int64_t tokens) {
  if (tokens <= 1) return 0;
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens - 1)));
}

std::int64_t bucket_upper(int bucket) { return std::int64_t{1} << bucket; }

}  // namespace octile
