#include "generator/gemm/cost_wgmma.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "generator/gemm/cost_shape.h"
#include "generator/gemm/cost_wgmma_blocks.h"

namespace octile::gemm_cost {
namespace {

// The constants are in cycles of one Hopper SM unless they say otherwise. They are fitted to races
// of about 14 configurations each and to times of searches, on an H200 and an H100. The GEMMs
// have 1 to 16384 tokens and n from 512 to 106496. In 220 races of the H200 the model's pick has
// 0.985 of the speed of the fastest configuration up to 128 tokens and 0.992 above, in 63 of the
// H100 0.984, 0.997 and, of weight gradients, 0.994; in 103 of each card that have groups as well,
// 0.960 (groups of K) to 0.994 (tests/unit/generator/gemm/cost_model_*races.jsonl).
// docs/experiments/cost_model.md has the history.

// Factors, by consumers, of tall tiles of fewer than 128 columns over many waves, which power
// bounds: about the medians of the races' residuals from 2048 tokens on. Additions to fp32 take
// such tiles only while memory is the limit, and need no factor (24 searches of 1024 tokens).
constexpr int kManyWaves = 2;
constexpr std::array kTallNarrow{1.07, 1.115, 1.09};
// Factor of splits of K that take one tile after another, over more than three waves: the median of
// the races' residuals.
constexpr int kFewSplitWaves = 3;
constexpr double kSplitInTurn = 1.15;
// Factors of groups of rows, over tiles of 128x192: two or more consumers with several WGMMA groups
// in flight, and three consumers. Chosen from 20 searches on an H100.
constexpr double kGroupsInFlight = 1.35;
constexpr double kGroupsThree = 1.045;
// Three consumers of masked groups. Tiles of 192x128 lose 2 to 21 % in all of 8 searches on an H100
// and in 2 races of each card, which no count of tiles explains.
constexpr double kMaskedThree = 1.13;
// Contiguous groups: factor of a consumer of 64 rows that has its SM alone. They do not have
// kTwoCtas: of two CTAs on an SM one computes while the other's tile ends. Fitted to 40 races of 19
// tiles on an H200, 128 to 4096 tokens and 8 to 128 groups.
constexpr double kGroupsLone = 1.02;
constexpr double kGroupsTallNarrow = 1.105;   // tall tiles of fewer than 128 columns, beside waves
constexpr double kTileCycles = 325;           // epilogue and the next tile's first loads
constexpr double kStoreBytesPerCycle = 25.5;  // accumulators to staging and out, or to another rank
// Bytes of fp32 D that an SM adds to in a cycle, while all SMs do: by TMA if L2 has them, and from
// registers.
constexpr double kAddBytesPerCycle = 25;
constexpr double kDirectAddBytesPerCycle = 7.9;
// Time in which additions read and write D in memory, over that of a stream of as many bytes. On an
// H100, weight gradients of 700 and 1024 tokens and experts' move 1.9 to 2.35 TB/s of D.
constexpr double kAddTraffic = 1.44;
// The factor by which it is larger if D is much larger than twice L2, which otherwise keeps a part
// of D between two GEMMs: 24 searches of 1024 tokens on an H100.
constexpr double kAddTrafficBeyondL2 = 0.2;
// Factor of the time that additions take, in memory and beside K-blocks, if the ring holds a whole
// tile: the next tile's loads, and the prefetches of its boxes of D, are then on their way
// meanwhile. 128x64 with 8 stages wins all of 10 races of 512 and 1024 tokens on an H100 by 4 to 14
// %, and none of 6 of 1536.
constexpr double kRingHoldsTile = 0.9;
// A tile's additions reach memory in one burst, and memory turns from reads to writes less often
// the smaller it is. This is the exponent of a tile's elements over those of 128x128: on an H100,
// 128x32 moves D 13 % faster than 128x64 with 512 tokens a group, and 128x64 2 to 9 % faster than
// larger tiles with 1024.
constexpr double kAddBurst = 0.18;
constexpr double kExchangePerRank = 480;  // partial sums to another rank of a split
// Cycles of an element of a split tile that lies in D. Tiles of 128 rows by two ranks take 1.0 of
// the time expected without it if most rows lie outside of D, and 1.15 to 1.3 if all are D's.
constexpr double kSplitElement = 0.42;
constexpr double kClockDerate = 0.921;  // sustained over datasheet clock under this load
constexpr double kDramDerate = 0.977;   // share of the read-mostly stream rate
constexpr double kL2Derate = 1.102;     // share of the L2 rate of the device's description
// The time that a box's row of 128 bytes adds to that of a row in one line of L2 if it lies in two
// lines, as L2 answers two requests, and if it touches three halves of lines. Six tiles of weight
// gradients of 6000 tokens, where 7 of 8 rows lie in two lines and 6 in three halves, read 4.4 to
// 4.7 TB/s on an H100; rows of K = 2880, of which half lie in two lines, cost much less.
constexpr double kSecondLine = 1;
constexpr double kThirdHalf = 1.3;
constexpr double kFillUs = 1.56;      // barriers, descriptors and first loads, beside the launch
constexpr double kSplitUs = 0.42;     // a cluster that splits K, per tile: start, exchange, end
constexpr double kClusterUs = 0.503;  // a cluster that shares an operand: its start and end
constexpr double kStagingUs = 0.08;   // a tile of 16 or 32 rows that TMA stores
constexpr double kTwoCtas = 1.09;     // factor of two CTAs on an SM, except for contiguous groups
constexpr double kTwoCtasOnChip = 1.07;  // factor of two CTAs on products and L2
// Starting the next kernel early hides its start, but its CTAs land where SMs become free. If they
// do not fill all SMs, neighbouring SMs share what other SMs have alone. Tiles that read the same
// rows of B then read them at different times, unless a cluster holds them together.
constexpr double kPdlEarlyUs = 0.95;
constexpr double kScatteredCtas = 1.04;
constexpr double kScatteredRows = 1.03;
// Groups have no wave of equal tiles, and a CTA of the next kernel takes the place of one that ends
// early while others still have tiles: masked groups over more than one wave lose up to 16 % in the
// races, and seldom gain.
constexpr double kScatteredGroups = 1.04;
constexpr double kScatteredContiguous = 1.01;
// Resources overlap, but not perfectly: this norm of their times lies between maximum and sum.
constexpr double kOverlapNorm = 5.25;
constexpr double kRowOverlapNorm = 8;  // if B has a scale for each row
// The constants above are fitted to the order of configurations, in which tensor cores that are
// the limit count as slower than they are. A problem whose time is that of tensor cores takes less
// by these, in any configuration: GEMMs with block scales, groups of rows, and GEMMs that promote
// no scaled sums. They are fitted to the winners of 997 searches on an H200 and an H100
// (docs/tuner.md has what is left). Below a share of kFewTensor of the time of tensor cores, memory
// and launch nothing is taken off, and from kMostTensor on all of it.
constexpr double kTensorBound = 0.1;
constexpr double kTensorBoundGroups = 0.075;
constexpr double kTensorBoundUnscaled = 0.155;
// MX GEMMs, whose constants above are counted and not fitted, take as much more: eight searches on
// an H100 beside GEMMs in BF16.
constexpr double kTensorBoundMx = -0.6;
constexpr double kFewTensor = 0.2;
constexpr double kMostTensor = 0.4;

double cycles_per_us(const DeviceSpec& d) { return d.clock_ghz * kClockDerate * 1e3; }

double memory_bytes_per_us(const DeviceSpec& d) { return d.dram_tbps * kDramDerate * 1e6; }

// Returns whether the next tile's loads are on their way while a tile's sums are added to D.
bool overlaps_additions(const GemmConfig& c, const GemmProblem& p, double k_blocks) {
  return adds_fp32(p) && !groups_k(p) && c.stages >= k_blocks;
}

// Returns the mean share of boxes without a K-block if a group of K has between half and three
// halves of `blocks_per_box`, each as likely.
double mean_late(double blocks_per_box) {
  const double most = std::clamp(1 / blocks_per_box, 0.5, 1.5);  // sizes below it lack K-blocks
  return most - 0.5 - blocks_per_box * (most * most - 0.25) / 2;
}

// Returns the cycles in which a CTA stores a tile of D or adds to it, if `sharing` CTAs share the
// SM. The copy thread of a kernel that adds by TMA prefetches a box of D for each K-block of a tile
// (output/staged_fp32.cuh). Additions to the boxes for which it has no K-block wait for memory.
double store_cycles(const GemmConfig& c, const GemmProblem& p, double k_blocks, double sharing,
                    const DeviceSpec& d) {
  const double bytes = size_of(p.d.dtype) * static_cast<double>(c.block_m) * c.block_n / c.splits;
  if (!adds_fp32(p)) return bytes / kStoreBytesPerCycle;
  if (c.store != EpilogueStore::kTma) return sharing * bytes / kDirectAddBytesPerCycle;
  const double boxes = c.block_m / 64.0 * (c.block_n / 32.0);
  const double late =
      groups_k(p) ? mean_late(k_blocks / boxes) : std::max(0.0, 1 - k_blocks / boxes);
  const double late_bytes_per_cycle =
      memory_bytes_per_us(d) / (2 * kAddTraffic) / d.sm_count / cycles_per_us(d);
  return bytes * ((1 - late) / kAddBytesPerCycle + late / late_bytes_per_cycle);
}

// Returns the cycles of a tile beside its K-blocks.
double tile_cycles(const GemmConfig& c, const GemmProblem& p, const Shape& s, double k_blocks,
                   double sharing, const DeviceSpec& d) {
  const double cycles = kTileCycles + store_cycles(c, p, k_blocks, sharing, d);
  if (c.splits == 1) return cycles;
  const double elements = static_cast<double>(c.block_m) * c.block_n;
  const double filled = static_cast<double>(s.m) / static_cast<double>(round_up(s.m, c.block_m));
  return cycles + kExchangePerRank * c.splits +
         elements * (4 / kStoreBytesPerCycle + kSplitElement * filled);
}

double compute_us(const GemmConfig& c, const GemmProblem& p, const Shape& s, const Tiling& t,
                  const DeviceSpec& d) {
  const double sharing = ctas_on_sm(t, d);
  const double tiles_in_turn = t.waves + (c.tail_n > 0 ? 1 : 0);
  const double k_blocks = k_blocks_of(c, s);
  const double blocks = k_blocks * wgmma_block_cycles(c, p, sharing, d);
  const double tile =
      tile_cycles(c, p, s, k_blocks, sharing, d) *
      (t.waves > kManyWaves && overlaps_additions(c, p, k_blocks) ? kRingHoldsTile : 1);
  double us = (t.waves * blocks + tiles_in_turn * tile) / cycles_per_us(d);
  if (t.waves > kManyWaves && c.block_m >= 128 && c.block_n < 128 && !adds_fp32(p)) {
    us *= kTallNarrow.at(static_cast<std::size_t>(c.consumer_warpgroups - 1));
  }
  if (t.waves > kFewSplitWaves && c.splits > 1) us *= kSplitInTurn;
  if (t.waves > 1 && c.cluster_m * c.cluster_n > 1) us *= d.cluster_factor;
  if (groups_rows(p)) {
    us *= c.in_flight > 1 && c.consumer_warpgroups > 1 ? kGroupsInFlight
          : c.consumer_warpgroups < 3                  ? 1
          : p.grouping == Grouping::kMasked            ? kMaskedThree
                                                       : kGroupsThree;
    if (c.block_m >= 128 && c.block_n < 128) us *= kGroupsTallNarrow;
    const double scattered_groups =
        p.grouping == Grouping::kMasked ? kScatteredGroups : kScatteredContiguous;
    if (c.pdl_early && t.waves > 1) us *= scattered_groups;
  }
  return us;
}

// Returns the time in which additions read and write D, over that of a stream of as many bytes.
double add_traffic(double d_elements, const DeviceSpec& d) {
  const double cached_bytes = 2 * static_cast<double>(d.l2_bytes);
  const double beyond = 1 - std::min(1.0, cached_bytes / (4 * d_elements));
  return kAddTraffic * (1 + kAddTrafficBeyondL2 * beyond);
}

double memory_us(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens, const Tiling& t,
                 const DeviceSpec& d) {
  const Elements elements = elements_of(p, tokens);
  const double burst = std::pow(c.block_m * c.block_n / (128.0 * 128), kAddBurst);
  const double accesses = adds_fp32(p)   ? 2 * add_traffic(elements.d, d) * burst
                          : p.accumulate ? 2
                                         : 1;
  const double bytes = elements.operands + size_of(p.d.dtype) * accesses * elements.d;
  // The few CTAs of a ragged last wave do not use the whole bandwidth. The root is fitted to seven
  // picks that a search beat by 10 to 27 %.
  return bytes / memory_bytes_per_us(d) / std::sqrt(t.filled);
}

// Returns the time in which L2 sends a K-block's rows of 128 bytes, over that of rows that are
// whole lines. The rows of operands are K elements apart, rounded up to TMA's 16 bytes, so that
// they begin at all multiples of the greatest common divisor of this stride and a line. Groups of K
// begin and end at whole lines.
double line_factor(const GemmProblem& p, const Shape& s) {
  if (groups_k(p)) return 1;
  constexpr std::int64_t kLineBytes = 128;
  const std::int64_t divisor = std::gcd(round_up(s.k, 16), kLineBytes);
  const auto share = [&](std::int64_t bytes) {  // share of rows that begin off multiples of `bytes`
    return 1 - static_cast<double>(std::min(divisor, bytes)) / static_cast<double>(bytes);
  };
  return 1 + kSecondLine * share(kLineBytes) + kThirdHalf * share(kLineBytes / 2);
}

double l2_us(const GemmConfig& c, const GemmProblem& p, const Shape& s, const Tiling& t,
             const DeviceSpec& d) {
  // A multicast operand leaves L2 once per cluster.
  const double block_bytes = 128.0 * (static_cast<double>(c.block_m) / c.cluster_n +
                                      static_cast<double>(c.block_n) / c.cluster_m);
  const double bytes = t.ctas * k_blocks_of(c, s) * block_bytes * line_factor(p, s);
  return bytes / (d.l2_tbps * kL2Derate * 1e6);
}

// Returns the factor of all of a GEMM's time by how many CTAs share an SM.
double residents_factor(const GemmConfig& c, const GemmProblem& p) {
  const bool is_contiguous = groups_rows(p) && p.grouping == Grouping::kContiguous;
  if (!is_contiguous) return c.ctas_per_sm > 1 ? kTwoCtas : 1;
  const bool lone = c.ctas_per_sm == 1 && c.consumer_warpgroups == 1 && c.block_m == 64;
  return lone ? kGroupsLone : 1;
}

double fixed_us(const GemmConfig& c, const Tiling& t, const DeviceSpec& d) {
  const double cluster = c.splits > 1 ? kSplitUs * t.waves : cluster_size(c) > 1 ? kClusterUs : 0;
  const double staging = c.store == EpilogueStore::kTma && c.block_m < 64 ? kStagingUs : 0;
  return d.launch_us + kFillUs + cluster + staging;
}

// Returns the factor by which CTAs slow each other's loads down if the next kernel starts early.
double scatter_factor(const GemmConfig& c, const Shape& s, const Tiling& t, const DeviceSpec& d) {
  if (!c.pdl_early) return 1;
  if (s.m > std::int64_t{c.block_m} * c.cluster_m) return kScatteredRows;
  const bool fills = t.ctas_at_once >= 0.95 * d.sm_count * c.ctas_per_sm;
  return fills ? 1 : kScatteredCtas;
}

// Returns the share of its time that a GEMM which tensor cores bound takes less.
double tensor_bound(const GemmProblem& p) {
  switch (scheme_of(p)) {
    case Scheme::kBlockB:
      return groups_rows(p) ? kTensorBoundGroups : kTensorBound;
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      return kTensorBoundUnscaled;
    case Scheme::kMx:
      return kTensorBoundMx;
    case Scheme::kRowB:
      break;
  }
  return 0;
}

}  // namespace

double problem_factor(const GemmProblem& p, std::int64_t tokens, const DeviceSpec& d) {
  const Elements elements = elements_of(p, tokens);
  const double bytes =
      elements.operands + size_of(p.d.dtype) * (p.accumulate ? 2.0 : 1.0) * elements.d;
  const double tensor = flops(p, tokens) / (d.fp8_tflops * 1e6);
  const double others = bytes / (d.dram_tbps * 1e6) + d.launch_us + kFillUs;
  const double share = tensor / (tensor + others);
  const double bound = (share - kFewTensor) / (kMostTensor - kFewTensor);
  return 1 - tensor_bound(p) * std::clamp(bound, 0.0, 1.0);
}

GemmCost estimate_wgmma(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens,
                        const DeviceSpec& d, double factor) {
  const Shape s = tiled_shape(c, p, tokens);
  const Tiling t = tiling(c, s, d);
  GemmCost cost;
  cost.compute_us = compute_us(c, p, s, t, d);
  const double scatter = scatter_factor(c, s, t, d);
  cost.memory_us = memory_us(c, p, tokens, t, d) * scatter;
  if (overlaps_additions(c, p, k_blocks_of(c, s))) cost.memory_us *= kRingHoldsTile;
  cost.l2_us = l2_us(c, p, s, t, d) * scatter;
  cost.fixed_us = fixed_us(c, t, d);
  if (c.ctas_per_sm > 1) {
    cost.compute_us *= kTwoCtasOnChip;
    cost.l2_us *= kTwoCtasOnChip;
  }
  const double norm = stages_scales_of_columns(scheme_of(p)) ? kRowOverlapNorm : kOverlapNorm;
  const auto power = [norm](double x) { return std::pow(x, norm); };
  cost.total_us =
      std::pow(power(cost.compute_us) + power(cost.memory_us) + power(cost.l2_us), 1 / norm) +
      cost.fixed_us;
  cost.total_us *= residents_factor(c, p);
  if (c.pdl_early) cost.total_us -= kPdlEarlyUs;
  cost.total_us *= factor;
  return cost;
}

}  // namespace octile::gemm_cost
