#include "generator/gemm/cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "generator/gemm/candidates.h"

namespace octile {
namespace {

// The constants are in cycles of one Hopper SM unless they say otherwise. They are fitted to races
// of about 14 configurations each and to what searches timed, on an H200 and an H100. The GEMMs
// have 1 to 16384 tokens and n from 512 to 106496. In 220 races of the H200 the model's pick has
// 0.985 of the speed of the fastest configuration up to 128 tokens and 0.992 above, in 63 of the
// H100 0.984, 0.997 and, of weight gradients, 0.994; in 103 of each card that have groups as well,
// 0.960 (groups of K) to 0.994 (tests/unit/generator/gemm/cost_model_*races.jsonl).
// docs/experiments/cost_model.md has the history.

constexpr double kTensorDerate = 1.406;  // what the tensor cores lose to power and operand fetch
constexpr double kMinGroupCycles = 96;   // four WGMMAs of the narrowest tile
constexpr double kPromotionPerColumn = 0.723;
// The cycles of a WGMMA group for each column of the tile at 8192 flop a cycle, which the H200 and
// the H100 have. kRowChainPerColumn and kRowHeldChainPerColumn are fitted with them.
constexpr double kFittedGroupPerColumn = 2;
// If B has a scale for each row, a K-block takes as long as shared memory is busy, or as the groups
// and promotions of one consumer take in turn. The factors are fitted to 18 races and 47 searches
// of weight gradients on an H200 and an H100, and agree between fits to either half of them.
constexpr double kRowPort = 1.04;
constexpr double kRowChainPerColumn = 7;
constexpr double kRowHeldChainPerColumn = 6.95;  // with held scales
constexpr double kRowInFlight = 1.07;
constexpr double kRowThree = 0.95;       // three consumers
constexpr double kRowThreeTwice = 0.98;  // three consumers, two K-blocks a pass
// Two consumers with two K-blocks a pass and one group in flight: the mean of 14 pairs is 1.023 for
// weight gradients, of 17 pairs 0.987 for groups of K.
constexpr double kRowTwice = 1.01;
constexpr double kGroupsRowTwice = 0.985;
constexpr double kRowPower = 1.135;
// The same if the tensor core multiplies the scales of A and B, of which no consumer reads any. It
// is counted in the machine code and not fitted to races: a strip's instructions are half as many,
// and a consumer's group and promotion are those of scales that serve runs of columns.
constexpr double kFactorsChainPerColumn = 4.2;
constexpr double kFactorsGroup = 1.25;     // a fifth instruction beside four
constexpr double kFactorsOperands = 0.25;  // and its operands
constexpr double kFactorsWrites = 0.125;   // port cycles for each scale that is written
// MX. These are counted in the machine code, not fitted to races.
constexpr double kMxGroupIssue = 26;       // instructions of a scheduler for a WGMMA group
constexpr double kMxIssueOfColumns = 1.1;  // instructions for each column, if B is 1x32
constexpr double kMxIssue = 0.6;           // instructions for each column, if B is 32x32
constexpr double kMxChain = 1.6;           // factor of a consumer that promotes alone
constexpr double kStraddleCycles = 6.84;   // per run of columns with a scale of its own
constexpr double kPromotionIssue = 2.65;   // promotions of all consumers share four schedulers
constexpr double kBlockCycles = 80;        // barrier wait, descriptors, release, per K-block
constexpr double kChainShare = 0.36;       // share of the chain that adds to any other limit
constexpr double kWideTile = 0.932;        // factor of tiles of more than 160 columns
// Three consumers keep an SM busy, and two do with several WGMMA groups in flight.
constexpr double kThree = 0.943;
constexpr double kTwoInFlight = 0.99;
// One consumer with four K-blocks a pass and two groups in flight instead of four: 135 pairs.
constexpr double kTwoOfFour = 0.998;
// Three consumers with two K-blocks a pass over one K-block a pass: the geometric mean of 148
// pairs, which are equal otherwise, is 1.01. For groups of rows it is 0.98 in searches.
constexpr double kThreeTwice = 1.015;
constexpr double kGroupsThreeTwice = 0.975;
// The CTAs of a cluster wait for each other before a stage is filled anew. This takes cycles of
// each K-block, whatever the tile. With several WGMMA groups in flight the races show no such cost.
constexpr double kClusterCycles = 78;
// Two consumers in a cluster that shares A, over one that shares B: about the mean of 86 pairs that
// are equal otherwise, not explained. Weight gradients and three consumers do not show it.
constexpr double kSharedA = 1.03;
// A pass keeps the stages that are in flight. If the ring hardly holds another pass, it runs dry.
constexpr double kShallowRing = 1.15;
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
// What it is larger by if D is much larger than twice L2, which otherwise keeps a part of D between
// two GEMMs: 24 searches of 1024 tokens on an H100.
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
// What a box's row of 128 bytes adds to the time of a row in one line of L2 if it lies in two
// lines, as L2 answers two requests, and if it touches three halves of lines. Six tiles of weight
// gradients of 6000 tokens, where 7 of 8 rows lie in two lines and 6 in three halves, read 4.4 to
// 4.7 TB/s on an H100; rows of K = 2880, of which half lie in two lines, cost much less.
constexpr double kSecondLine = 1;
constexpr double kThirdHalf = 1.3;
constexpr double kFillUs = 1.56;         // barriers, descriptors and first loads, beside the launch
constexpr double kSplitUs = 0.42;        // a cluster that splits K, per tile: start, exchange, end
constexpr double kClusterUs = 0.503;     // a cluster that shares an operand: its start and end
constexpr double kStagingUs = 0.08;      // a tile of 16 or 32 rows that TMA stores
constexpr double kTwoCtas = 1.09;        // factor of two CTAs side by side on an SM
constexpr double kTwoCtasOnChip = 1.07;  // factor of two CTAs on products and L2
// Share of the last round's time that tail tiles save. The SMs that would idle in that round
// leave their power to the others, so that not all of it is gained. The rest counts as another
// tile's start and end. Fifteen GEMMs of 1500 to 12000 rows in rounds of 192x128 gained up to 8.5
// %, most with long K and few rounds; with K = 512 they lost 2.8 %.
constexpr double kTailGain = 0.6;
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
// the limit count as slower than they are. These are what a problem whose time is that of tensor
// cores takes less, whatever its configuration: GEMMs with block scales, groups of rows, and GEMMs
// that promote no scaled sums. They are fitted to the winners of 997 searches on an H200 and an
// H100 (docs/tuner.md has what is left). Below a share of kFewTensor of the time of tensor cores,
// memory and launch nothing is taken off, and from kMostTensor on all of it.
constexpr double kTensorBound = 0.1;
constexpr double kTensorBoundGroups = 0.075;
constexpr double kTensorBoundUnscaled = 0.155;
// MX GEMMs, whose constants above are counted and not fitted, take as much more: eight searches on
// an H100 beside GEMMs in BF16.
constexpr double kTensorBoundMx = -0.6;
constexpr double kFewTensor = 0.2;
constexpr double kMostTensor = 0.4;

// The dimensions of a GEMM at a token count. Those of groups or of a batch are one GEMM with as
// many tiles, and a sum over a batch is one with all of its K.
struct Shape {
  std::int64_t m, n, k;
};

// Returns the tiles of `rows` rows that a group needs on average, if any size from half of the mean
// to three halves of it is as likely: the sum of the chances that it has a first tile, a second,
// ...
double mean_tiles(std::int64_t mean, std::int64_t rows) {
  const double most = 1.5 * static_cast<double>(mean), range = static_cast<double>(mean);
  double tiles = 0;
  for (std::int64_t before = 0; static_cast<double>(before) < most; before += rows) {
    tiles += std::min(1.0, (most - static_cast<double>(before)) / range);
  }
  return tiles;
}

// Each group, or GEMM of a batch, has whole tiles. Contiguous groups of rows are taken to vary in
// size by as much as a tile has rows, so that the last tile of a group is half empty in the mean.
// Masked groups are taken to have between half and three halves of the rows that are expected, and
// groups of K to be equally large (but see mean_late()).
Shape shape_of_groups(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens) {
  const std::int64_t rows = std::int64_t{c.block_m} * c.cluster_m;
  if (groups_k(p)) {
    return {p.groups * round_up(p.m, rows), p.n, ceil_div(tokens, p.groups)};
  }
  if (p.sums_batch) return {p.m, p.n, p.batch * tokens};
  if (is_batched(p)) return {whole_gemms(p) * round_up(tokens, rows), p.n, p.k};
  if (p.grouping == Grouping::kMasked) {
    const double tiles = static_cast<double>(p.groups) * mean_tiles(tokens, rows);
    return {std::llround(tiles) * rows, p.n, p.k};
  }
  const std::int64_t filled = std::min(tokens, p.groups);  // groups that have a row
  if (filled == 1) return {round_up(tokens, rows), p.n, p.k};
  const std::int64_t tiles = (tokens + filled * rows / 2) / rows;
  return {std::max(filled, tiles) * rows, p.n, p.k};
}

struct Tiling {
  double waves = 0;   // rounds of the clusters that are resident at once
  double filled = 1;  // share of the slots of several rounds that would have work without splits
  double ctas = 0;    // CTAs of all tiles
  double ctas_at_once = 0;
};

Tiling tiling(const GemmConfig& c, const Shape& s, const DeviceSpec& d) {
  const std::int64_t slots = resident_clusters(c, d.sm_count);
  const auto shares = [&](int tail_n) {
    return share_tiles(s.m, s.n, std::int64_t{c.block_m} * c.cluster_m,
                       std::int64_t{c.block_n} * c.cluster_n, tail_n, slots);
  };
  const TileShares whole = shares(0);
  const std::int64_t tiles = whole.tiles();
  const int size = cluster_size(c);
  const double gain = c.tail_n > 0 ? whole.rounds - shares(c.tail_n).rounds : 0;
  const std::int64_t unsplit = slots * c.splits;
  const double filled =
      tiles <= unsplit ? 1
                       : static_cast<double>(tiles) / static_cast<double>(round_up(tiles, unsplit));
  return {whole.rounds - kTailGain * gain, filled, static_cast<double>(tiles * size),
          static_cast<double>(std::min(tiles, slots) * size)};
}

// Returns the promotions of a strip for each K-block.
double promotions_per_block(const GemmConfig& c) {
  if (c.promote == kPromoteNone) return 0;
  return has_long_sums(c.promote) ? 128.0 / c.promote : 1;
}

// Returns the cycles of a strip's promotions for each K-block, `segments` runs of columns having a
// scale of B each.
double promotion_cycles(const GemmConfig& c, int segments) {
  const double cycles = promotions_per_block(c) * kPromotionPerColumn * c.block_n;
  return cycles + (segments > 1 ? kStraddleCycles * segments : 0);
}

// Returns the cycles of the tensor core for a WGMMA group: a strip of 64 rows and 128 of K.
double group_cycles(const GemmConfig& c, const DeviceSpec& d) {
  return 64.0 * c.block_n * 128 * 2 / d.flops_per_cycle(MatrixUnit::kWgmma);
}

// Returns the time of a K-block over what its resources alone would take, by the tile's shape.
double tile_shape_factor(const GemmConfig& c, const GemmProblem& p) {
  const bool shallow = c.in_flight > 2 ? c.stages <= 2 * c.in_flight : c.stages < 2 * c.in_flight;
  double factor = 1;
  if (c.block_n > 160) factor *= kWideTile;
  if (c.consumer_warpgroups == 3) factor *= kThree;
  if (c.consumer_warpgroups == 3 && c.unroll > 1) {
    factor *= groups_rows(p) ? kGroupsThreeTwice : kThreeTwice;
  }
  if (c.consumer_warpgroups == 2 && c.in_flight > 1) factor *= kTwoInFlight;
  if (c.consumer_warpgroups == 2 && c.cluster_n > 1) factor *= kSharedA;
  if (c.consumer_warpgroups == 1 && c.unroll == 4 && c.in_flight == 2) factor *= kTwoOfFour;
  if (shallow) factor *= kShallowRing;
  return factor;
}

// Returns the cycles of one K-block of one CTA if B has a scale for each row. Shared memory moves
// 128 bytes a cycle: operands to the tensor core, once for each strip of 64 rows; a scale for every
// column to each thread that needs it; and what TMA brings.
double row_block_cycles(const GemmConfig& c, const GemmProblem& p, double sharing,
                        const DeviceSpec& d) {
  const double strips = std::max(1.0, c.block_m / 64.0);
  const double groups = strips / c.consumer_warpgroups;
  const double parts = 128.0 / c.promote;
  const double operands = strips * (64 + c.block_n);
  const double scales = strips * (8 + c.block_n * (c.hold_scales ? 1 / groups : parts));
  const double port = (operands + scales + c.block_m + c.block_n) * sharing;
  const double per_column = c.hold_scales ? kRowHeldChainPerColumn : kRowChainPerColumn;
  const double slower = group_cycles(c, d) - kFittedGroupPerColumn * c.block_n;
  const double chain = groups * per_column * c.block_n + groups * slower;
  const double tensor = strips * group_cycles(c, d) * sharing;
  const int consumers = c.consumer_warpgroups;
  double shape = c.in_flight > 1 ? kRowInFlight : 1;
  if (consumers == 3) shape *= kRowThree;
  if (consumers == 3 && c.unroll > 1) shape *= kRowThreeTwice;
  if (consumers == 2 && c.unroll > 1 && c.in_flight == 1) {
    shape *= groups_k(p) ? kGroupsRowTwice : kRowTwice;
  }
  return kRowPower * shape * std::max({kRowPort * port, chain, tensor});
}

// The same if the tensor core multiplies the scales.
double factors_block_cycles(const GemmConfig& c, double sharing, const DeviceSpec& d) {
  const double strips = std::max(1.0, c.block_m / 64.0);
  const double rows = c.block_m + c.block_n;
  const double operands = (1 + kFactorsOperands) * strips * (64 + c.block_n);
  const double port = (operands + (1 + kFactorsWrites) * rows) * sharing;
  const double chain = strips / c.consumer_warpgroups * kFactorsChainPerColumn * c.block_n;
  const double tensor = kFactorsGroup * strips * group_cycles(c, d) * sharing;
  const double shape = c.consumer_warpgroups == 3 ? kRowThree : 1;
  return kRowPower * shape * std::max({kRowPort * port, chain, tensor});
}

// Returns the cycles of one K-block of one CTA with MX scales. Either the schedulers bound it,
// which issue the promotions of all consumers, or a consumer's groups and promotions, which follow
// one another two at a time.
double mx_block_cycles(const GemmConfig& c, const GemmProblem& p, const DeviceSpec& d) {
  const double groups = 4 * std::max(1.0, c.block_m / 64.0);
  const bool of_columns = p.b.granularity == Granularity::k1x32;
  const double issue = kMxGroupIssue + (of_columns ? kMxIssueOfColumns : kMxIssue) * c.block_n;
  const double tensor = std::max(group_cycles(c, d) / 4, kMinGroupCycles / 4) * kTensorDerate;
  const double chain = groups / c.consumer_warpgroups * std::max(kMxChain * issue, tensor);
  return std::max(groups * std::max(issue, tensor), chain);
}

// The same if a scale of B serves runs of columns, or the finished sums.
double run_block_cycles(const GemmConfig& c, const GemmProblem& p, int segments, double sharing,
                        const DeviceSpec& d) {
  const double strips = std::max(1.0, c.block_m / 64.0);
  const double group = std::max(group_cycles(c, d), kMinGroupCycles);
  const double promotion = promotion_cycles(c, segments);
  const double tensor = strips * group * kTensorDerate * sharing;
  // One warpgroup's chain over a pass. With one WGMMA group in flight, groups and promotions follow
  // one another. With more, only the longer of the two counts, and one promotion is exposed.
  const double groups = c.unroll * strips / c.consumer_warpgroups;
  const double pass = c.in_flight == 1 ? groups * (group + promotion)
                                       : promotion + groups * std::max(group, promotion);
  // In a long sum the next K-block's groups are issued before those of the last one have completed.
  const double chain = pass / c.unroll + kBlockCycles * promotions_per_block(c);
  const double issue = strips * promotion * kPromotionIssue * sharing;
  const bool waits = c.cluster_m * c.cluster_n > 1 && c.in_flight == 1;
  return tile_shape_factor(c, p) * (std::max({tensor, chain, issue}) + kChainShare * chain) +
         (waits ? kClusterCycles : 0);
}

// Returns the cycles of one K-block of one CTA if `sharing` CTAs share the SM.
double block_cycles(const GemmConfig& c, const GemmProblem& p, double sharing,
                    const DeviceSpec& d) {
  switch (scheme_of(p)) {
    case Scheme::kMx:
      return mx_block_cycles(c, p, d);
    case Scheme::kRowB:
      return c.mma_factors ? factors_block_cycles(c, sharing, d)
                           : row_block_cycles(c, p, sharing, d);
    case Scheme::kBlockB:
      return run_block_cycles(c, p, column_segments(c), sharing, d);
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      break;
  }
  return run_block_cycles(c, p, 1, sharing, d);
}

double cycles_per_us(const DeviceSpec& d) { return d.clock_ghz * kClockDerate * 1e3; }

double memory_bytes_per_us(const DeviceSpec& d) { return d.dram_tbps * kDramDerate * 1e6; }

// Returns true if D's old values are read and its sums written in fp32.
bool adds_fp32(const GemmProblem& p) { return p.accumulate && p.d.dtype == DType::kFP32; }

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

double area(std::int64_t rows, std::int64_t cols) {
  return static_cast<double>(rows) * static_cast<double>(cols);
}

double k_blocks_of(const GemmConfig& c, const Shape& s) {
  return static_cast<double>(ceil_div(ceil_div(s.k, 128), c.splits));
}

double compute_us(const GemmConfig& c, const GemmProblem& p, const Shape& s, const Tiling& t,
                  const DeviceSpec& d) {
  const double sharing = std::max(1.0, std::ceil(t.ctas_at_once / d.sm_count));
  const double tiles_in_turn = t.waves + (c.tail_n > 0 ? 1 : 0);
  const double k_blocks = k_blocks_of(c, s);
  const double blocks = k_blocks * block_cycles(c, p, sharing, d);
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

// Returns the elements of both operands and of D. Rows and columns that only fill up tiles are
// neither read nor written, and a contiguous group without rows does not read its B.
struct Elements {
  double operands, d;
};

Elements elements_of(const GemmProblem& p, std::int64_t tokens) {
  if (groups_k(p)) return {area(p.m + p.n, tokens), static_cast<double>(p.groups) * area(p.m, p.n)};
  const std::int64_t gemms = whole_gemms(p);
  const std::int64_t rows = gemms * m_at(p, tokens);
  const std::int64_t weights =
      p.grouping == Grouping::kContiguous ? std::min(tokens, p.groups) : gemms;
  const std::int64_t written = whole_results(p) * m_at(p, tokens);
  return {area(rows + weights * p.n, k_at(p, tokens)), area(written, p.n)};
}

// Returns the time in which additions read and write D, over that of a stream of as many bytes.
double add_traffic(double d_elements, const DeviceSpec& d) {
  const double held = 2 * static_cast<double>(d.l2_bytes);
  const double beyond = 1 - std::min(1.0, held / (4 * d_elements));
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

// Returns the factor of all estimates of a problem, which ranks no configuration.
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

}  // namespace

GemmCost estimate(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens,
                  const DeviceSpec& d) {
  const Shape s = has_several_gemms(p) ? shape_of_groups(c, p, tokens)
                                       : Shape{m_at(p, tokens), p.n, k_at(p, tokens)};
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
  if (c.ctas_per_sm > 1) cost.total_us *= kTwoCtas;
  if (c.pdl_early) cost.total_us -= kPdlEarlyUs;
  cost.total_us *= problem_factor(p, tokens, d);
  return cost;
}

double estimate_us(const GemmConfig& c, const GemmProblem& p, std::int64_t tokens,
                   const DeviceSpec& d) {
  return estimate(c, p, tokens, d).total_us;
}

GemmConfig default_config(const GemmProblem& problem, std::int64_t tokens,
                          const DeviceSpec& device) {
  const std::int64_t known = std::max<std::int64_t>(tokens, 1);
  // Ties fall to the first enumerated, which is the smaller tile without a cluster.
  GemmConfig best;
  double best_us = std::numeric_limits<double>::infinity();
  for (const GemmConfig& c : candidates(problem, known, device).admitted) {
    const double us = estimate_us(c, problem, known, device);
    if (us < best_us * (1 - 1e-9)) {
      best_us = us;
      best = c;
    }
  }
  return best;
}

std::string default_reason(const GemmProblem& /*problem*/, std::int64_t /*tokens*/,
                           const DeviceSpec& /*device*/) {
  return "the cost model";
}

}  // namespace octile
