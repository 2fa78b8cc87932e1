#include "generator/gemm/cost_wgmma_blocks.h"

#include <algorithm>

namespace octile::gemm_cost {
namespace {

// These constants are fitted with those of cost_wgmma.cc, and like them in cycles of one Hopper SM.

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
// The same if the tensor core multiplies the scales of A and B, of which no consumer reads any. A
// strip of 64 rows costs cycles for each column, and a fixed number of cycles. The first three
// constants are fitted to 36 weight gradients, each in nine or more tiles, on an H200.
constexpr double kFactorsStrip = 304;
constexpr double kFactorsPerColumn = 0.91;
constexpr double kFactorsChainPerColumn = 5.2;  // a consumer's group and promotion
constexpr double kFactorsGroup = 1.25;          // counted: a fifth instruction beside four
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
// each K-block in any tile. With several WGMMA groups in flight the races show no such cost.
constexpr double kClusterCycles = 78;
// Two consumers in a cluster that shares A, over one that shares B: about the mean of 86 pairs that
// are equal otherwise, not explained. Weight gradients and three consumers do not show it.
constexpr double kSharedA = 1.03;
// A pass keeps the stages that are in flight. If the ring hardly holds another pass, it runs dry.
constexpr double kShallowRing = 1.15;

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

// Returns the time of a K-block over the time that its resources alone would take, by the tile's
// shape.
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
  const double shared = strips * (kFactorsStrip + kFactorsPerColumn * c.block_n) * sharing;
  const double chain = strips / c.consumer_warpgroups * kFactorsChainPerColumn * c.block_n;
  const double tensor = kFactorsGroup * strips * group_cycles(c, d) * sharing;
  const double shape = c.consumer_warpgroups == 3 ? kRowThree : 1;
  return kRowPower * shape * std::max({shared, chain, tensor});
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

}  // namespace

double wgmma_block_cycles(const GemmConfig& c, const GemmProblem& p, double sharing,
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

}  // namespace octile::gemm_cost
