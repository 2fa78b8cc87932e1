#include "generator/gemm/candidates.h"

#include <algorithm>
#include <array>

namespace octile {
namespace {

// ---- axes
// -----------------------------------------------------------------------------------------

constexpr std::array kBlockM{16, 32, 64, 128, 192, 256};
constexpr std::array kBlockN{16,  32,  48,  64,  80,  96,  112, 128,
                             144, 160, 176, 192, 208, 224, 240, 256};
constexpr std::array kConsumers{1, 2, 3};
constexpr std::array<std::pair<int, int>, 3> kClusters{{{1, 1}, {2, 1}, {1, 2}}};
// K-blocks a pass x products in flight.
constexpr std::array<std::pair<int, int>, 5> kOverlaps{{{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 4}}};
constexpr std::array kStores{EpilogueStore::kTma, EpilogueStore::kDirect};
constexpr std::array kCtasPerSm{1, 2};
constexpr std::array kSplits{1, 2, 3, 4, 6, 8};
constexpr std::array kNextEarly{false, true};
constexpr std::array kTailN{0, 64};
// Beside the usual one; columns are shared out evenly (columns_of).
constexpr std::array kRasters{Raster{8, false}, Raster{16, false}, Raster{1, false},
                              Raster{8, true},  Raster{12, true},  Raster{16, true}};
// Of one tile and its consumers.
constexpr std::size_t kOfATile = std::size(kClusters) * std::size(kOverlaps) * std::size(kStores) *
                                 std::size(kCtasPerSm) * std::size(kSplits) *
                                 std::size(kNextEarly) * std::size(kTailN);
constexpr int kMaxStages = 16;
// Of an SM's shared memory the driver keeps 1 KB for every CTA (CUDA C++ Programming Guide,
// "Compute Capability 9.0").
constexpr int kReservedPerCtaBytes = 1024;

// What one CTA may ask for, so that `ctas_per_sm` fit.
int smem_limit(const GemmConfig& c, const DeviceSpec& device) {
  const int per_sm = device.max_smem_per_block_bytes + kReservedPerCtaBytes;
  return per_sm / std::max(c.ctas_per_sm, 1) - kReservedPerCtaBytes;
}

// The deepest ring that fits: more bytes in flight never cost anything but shared memory.
int deepest_ring(GemmConfig c, const DeviceSpec& device) {
  c.stages = 1;
  const int one = resources_of(c).smem.total_bytes;
  c.stages = 2;
  const int stage = resources_of(c).smem.total_bytes - one;
  return std::clamp(1 + (smem_limit(c, device) - one) / stage, 1, kMaxStages);
}

// Bands of about so many columns, as wide as each other.
Raster columns_of(int about, std::int64_t tiles_n) {
  const std::int64_t bands = std::max<std::int64_t>((tiles_n + about / 2) / about, 1);
  return {static_cast<int>(ceil_div(tiles_n, bands)), true};
}

// One name for each walk: a band is no wider than what there is, and bands of one tile are a single
// band of the other kind.
Raster same_walk(Raster raster, std::int64_t tiles_m, std::int64_t tiles_n) {
  const std::int64_t across = raster.of_columns ? tiles_n : tiles_m;
  const std::int64_t along = raster.of_columns ? tiles_m : tiles_n;
  if (raster.band == 1) return {static_cast<int>(along), !raster.of_columns};
  return {static_cast<int>(std::min<std::int64_t>(raster.band, across)), raster.of_columns};
}

// ---- constraints
// ----------------------------------------------------------------------------------

bool device_has_wgmma(const GemmConfig&, const GemmProblem&, const DeviceSpec& d) {
  return d.has_fp8_wgmma();
}
bool tile_is_whole_strips(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  if (c.block_m == 16 || c.block_m == 32) return c.consumer_warpgroups == 1;
  return c.consumer_warpgroups >= 1 && c.consumer_warpgroups <= 3 && c.block_m > 0 &&
         c.block_m % (64 * c.consumer_warpgroups) == 0;
}
bool tile_fits_instruction(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.block_n >= 16 && c.block_n <= 256 && c.block_n % 16 == 0 && c.block_k == 128;
}
bool boxes_fit_tma(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  const GemmResources r = resources_of(c);
  return r.a_box_rows <= 256 && r.b_box_rows <= 256;
}
bool cluster_shares_one_operand(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  const bool one_sided = c.cluster_m == 1 || c.cluster_n == 1;
  const bool size = c.cluster_m >= 1 && c.cluster_n >= 1 && c.cluster_m * c.cluster_n <= 2;
  return one_sided && size && c.block_m % (8 * c.cluster_n) == 0 &&
         c.block_n % (8 * c.cluster_m) == 0;
}
bool ring_is_a_pipeline(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.stages >= 3 && c.stages <= kMaxStages;
}
bool fits_shared_memory(const GemmConfig& c, const GemmProblem&, const DeviceSpec& d) {
  return resources_of(c).smem.total_bytes <= smem_limit(c, d);
}
bool fits_registers(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  const GemmResources r = resources_of(c);
  const bool parts_of_blocks = c.promote < 128 && c.unroll > 1;
  const int others = c.in_flight > 2 ? 50 : parts_of_blocks ? 48 : c.in_flight > 1 ? 40 : 32;
  return r.accumulator_registers + others <= r.consumer_registers;
}
bool promotion_matches(const GemmConfig& c, const GemmProblem& p, const DeviceSpec&) {
  return c.promote == p.promote;
}
bool splits_are_allowed(const GemmConfig& c, const GemmProblem& p, const DeviceSpec&) {
  if (c.splits == 1) return true;
  // Every rank has a K-block, and a share of the columns.
  return c.splits >= 2 && c.splits <= 8 && !p.invariant && c.splits <= ceil_div(p.k, 128) &&
         c.splits <= c.block_n / 8;
}
bool cluster_splits_or_shares(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.splits == 1 || (c.cluster_m == 1 && c.cluster_n == 1);
}
bool two_ctas_share_an_sm(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.ctas_per_sm == 1 || (c.ctas_per_sm == 2 && c.consumer_warpgroups == 1);
}
bool store_suits_tile(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  if (c.splits > 1) return c.store == EpilogueStore::kDirect;
  return c.store == EpilogueStore::kTma || c.block_n <= 32;
}
bool short_tiles_are_narrow(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.block_m >= 64 || c.block_n <= 128;
}
bool tall_tiles_are_wide(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.block_m <= 128 || c.block_n >= 96;
}
bool clusters_pay(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  const bool rows_of_few_tokens =
      c.cluster_m == 2 && c.block_m == 64 && c.block_n >= 64 && c.ctas_per_sm == 1;
  return (c.cluster_m == 1 && c.cluster_n == 1) || (c.block_m >= 128 && c.block_n >= 96) ||
         rows_of_few_tokens;
}
bool large_tiles_stay_whole(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.splits == 1 || (c.block_m <= 128 && c.block_n <= 128);
}
bool overlap_fits_pass(const GemmConfig& c, const GemmProblem& p, const DeviceSpec&) {
  const int strips = std::max(1, c.block_m / (64 * c.consumer_warpgroups));
  return c.unroll >= 1 && c.in_flight >= 1 && c.in_flight <= 4 && c.unroll <= c.stages &&
         c.in_flight <= c.unroll * strips * (128 / p.promote);
}
// Additions of a thread in one pass of the main loop, all written out: they are what NVRTC's time
// grows with, by about 1 ms each on one core.
bool compiles_in_time(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  constexpr int kMostAdditions = 128;
  const int strips = std::max(1, c.block_m / (64 * c.consumer_warpgroups));
  return c.unroll * strips * (c.block_n + c.tail_n) / 2 <= kMostAdditions;
}
bool early_next_is_for_few_rows(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return !c.pdl_early || (c.block_m <= 128 && c.cluster_n == 1);
}
bool tail_tiles_are_halves(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  if (c.tail_n == 0) return true;
  return c.tail_n == 64 && c.block_m == 192 && c.block_n == 128 && c.consumer_warpgroups == 3 &&
         cluster_size(c) == 1 && c.unroll == 1 && c.in_flight == 1 && !c.pdl_early &&
         c.promote == 128;
}
bool raster_is_positive(const GemmConfig& c, const GemmProblem&, const DeviceSpec&) {
  return c.raster.band >= 1;
}

// In the order they are asked: the first look at the tile and its consumers alone, the last at the
// ring's depth, which takes longest to find. A candidate counts for the first that refuses it.
constexpr std::size_t kOfTheTile = 5;
constexpr std::size_t kOfTheRing = 3;
constexpr std::array kConstraints{
    GemmConstraint{"device_has_wgmma", "FP8 WGMMA exists on compute capability 9.0 only",
                   device_has_wgmma},
    GemmConstraint{
        "tile_is_whole_strips",
        "block_m is 16 or 32 rows of one consumer warpgroup, or a multiple of 64 rows per "
        "consumer warpgroup, of which there are 1 to 3 (WGMMA works on 64 rows)",
        tile_is_whole_strips},
    GemmConstraint{"tile_fits_instruction",
                   "block_n is a multiple of 16 in 16..256 and block_k is 128 (one WGMMA's N; one "
                   "scale block's K)",
                   tile_fits_instruction},
    GemmConstraint{"short_tiles_are_narrow",
                   "a tile of 16 or 32 rows has at most 128 columns: few tokens are bound by "
                   "memory, and more CTAs, not wider tiles, ask for it faster",
                   short_tiles_are_narrow},
    GemmConstraint{"tall_tiles_are_wide",
                   "a tile of more than 128 rows has at least 96 columns: below, WGMMA's operand "
                   "reads from shared memory and not its products set the rate",
                   tall_tiles_are_wide},
    GemmConstraint{"tail_tiles_are_halves",
                   "narrow tiles are the halves, of 64 columns, of tiles of 192x128 by three "
                   "consumers, alone and one product of a whole K-block at a time: the rounds of "
                   "others are shorter, they lose by themselves what an even last round gains "
                   "(measured), or they spill",
                   tail_tiles_are_halves},
    GemmConstraint{"cluster_shares_one_operand",
                   "a cluster is 1x1, 2x1 or 1x2 and its slices are whole 8-row swizzle atoms",
                   cluster_shares_one_operand},
    GemmConstraint{"promotion_matches",
                   "the promotion interval is the problem's, never a tuning axis",
                   promotion_matches},
    GemmConstraint{"cluster_splits_or_shares", "a cluster either splits K or shares an operand",
                   cluster_splits_or_shares},
    GemmConstraint{"clusters_pay",
                   "operands are shared by tiles of 128x96 and more, and B by two of 64 rows that "
                   "have an SM each: "
                   "below, a cluster's start costs more than its loads save (measured)",
                   clusters_pay},
    GemmConstraint{
        "large_tiles_stay_whole",
        "tiles of more than 128 rows or columns are not split: their partial sums take the "
        "shared memory the ring needs and as long to exchange as splitting saves (measured)",
        large_tiles_stay_whole},
    GemmConstraint{"two_ctas_share_an_sm",
                   "one CTA an SM, or two of one consumer warpgroup each (half of the registers)",
                   two_ctas_share_an_sm},
    GemmConstraint{"store_suits_tile",
                   "split K stores directly; otherwise D goes through TMA, and directly only where "
                   "rows of at most 64 bytes leave TMA nothing to gain (wider tiles lose up to a "
                   "third: measured)",
                   store_suits_tile},
    GemmConstraint{"compiles_in_time",
                   "a pass adds at most 128 promoted sums a thread: beyond, a cold compile takes "
                   "more than 250 ms for at most 1 % of speed (measured)",
                   compiles_in_time},
    GemmConstraint{"early_next_is_for_few_rows",
                   "the next kernel starts early only behind tiles of at most 128 rows that share "
                   "no A: its CTAs land where SMs become free, and tiles that read the same rows "
                   "of B no longer side by side (measured: 2 % and more)",
                   early_next_is_for_few_rows},
    GemmConstraint{"raster_is_positive", "a raster band is at least one tile wide",
                   raster_is_positive},
    GemmConstraint{"splits_are_allowed",
                   "K is split 1 to 8 times (a portable cluster), each split has a K-block and a "
                   "group of 8 columns, and a batch-invariant problem is never split",
                   splits_are_allowed},
    GemmConstraint{"boxes_fit_tma", "a TMA box has at most 256 rows", boxes_fit_tma},
    GemmConstraint{
        "fits_registers",
        "accumulators and partial sums leave 32 of a consumer's registers with one product in "
        "flight, 40 with two, 50 with more (48 where unrolled K-blocks are promoted in parts) for "
        "addresses, scales and loop state (ptxas 13.0 spills below)",
        fits_registers},
    GemmConstraint{"ring_is_a_pipeline",
                   "the ring holds 3 to 16 stages: fewer cannot hide a load behind two products",
                   ring_is_a_pipeline},
    GemmConstraint{"fits_shared_memory",
                   "ring, staging, scales and barriers fit the device's opt-in shared memory, or "
                   "half of it where two CTAs share an SM",
                   fits_shared_memory},
    GemmConstraint{"overlap_fits_pass",
                   "a pass of `unroll` K-blocks fits the ring and holds at least the 1 to 4 "
                   "products in flight",
                   overlap_fits_pass},
};

const GemmConstraint* first_refusal(std::span<const GemmConstraint> rules, const GemmConfig& c,
                                    const GemmProblem& p, const DeviceSpec& d) {
  const auto it = std::ranges::find_if(
      rules, [&](const GemmConstraint& rule) { return !rule.admits(c, p, d); });
  return it == rules.end() ? nullptr : &*it;
}

}  // namespace

std::span<const GemmConstraint> gemm_constraints() { return kConstraints; }

const GemmConstraint* refused_by(const GemmConfig& c, const GemmProblem& p, const DeviceSpec& d) {
  return first_refusal(kConstraints, c, p, d);
}

GemmCandidates gemm_candidates(const GemmProblem& problem, const DeviceSpec& device) {
  GemmCandidates result;
  for (const GemmConstraint& rule : kConstraints) result.removed.emplace_back(rule.name, 0);
  const auto count = [&](const GemmConstraint* refusal, std::size_t configurations) {
    result.enumerated += configurations;
    if (refusal == nullptr) return;
    result.removed[static_cast<std::size_t>(refusal - kConstraints.data())].second +=
        configurations;
  };
  GemmConfig c;
  c.promote = problem.promote;
  // Every axis in turn, the last fastest.
  const auto each = [](const auto& values, auto& field, const auto& next) {
    for (const auto value : values) {
      field = value;
      next();
    }
  };
  const std::span<const GemmConstraint> rules = kConstraints;
  const auto consider = [&] {
    const GemmConstraint* refusal = first_refusal(
        rules.subspan(kOfTheTile, rules.size() - kOfTheTile - kOfTheRing), c, problem, device);
    if (refusal == nullptr) {
      c.stages = deepest_ring(c, device);
      refusal = first_refusal(rules.last(kOfTheRing), c, problem, device);
    }
    count(refusal, 1);
    if (refusal == nullptr) result.admitted.push_back(c);
  };
  const auto of_the_tile = [&] {
    if (const GemmConstraint* refusal =
            first_refusal(rules.first(kOfTheTile), c, problem, device)) {
      count(refusal, kOfATile);
      return;
    }
    for (const auto& [cluster_m, cluster_n] : kClusters) {
      c.cluster_m = cluster_m;
      c.cluster_n = cluster_n;
      c.raster = usual_raster(c, problem.n);
      for (const auto& [unroll, in_flight] : kOverlaps) {
        c.unroll = unroll;
        c.in_flight = in_flight;
        each(kStores, c.store, [&] {
          each(kCtasPerSm, c.ctas_per_sm, [&] {
            each(kSplits, c.splits, [&] {
              each(kNextEarly, c.pdl_early, [&] { each(kTailN, c.tail_n, consider); });
            });
          });
        });
      }
    }
  };
  each(kBlockM, c.block_m, [&] {
    each(kBlockN, c.block_n, [&] { each(kConsumers, c.consumer_warpgroups, of_the_tile); });
  });
  return result;
}

Raster usual_raster(const GemmConfig& c, std::int64_t n) {
  const bool rows_weigh_more = c.block_m > 128 && c.block_m > c.block_n;
  if (!rows_weigh_more || c.cluster_m * c.cluster_n > 1) return {};
  return columns_of(16, ceil_div(n, c.block_n));
}

std::vector<Raster> other_rasters(const GemmConfig& c, const GemmProblem& problem, std::int64_t m) {
  const std::int64_t tiles_m = ceil_div(m, std::int64_t{c.block_m} * c.cluster_m);
  const std::int64_t tiles_n = ceil_div(problem.n, std::int64_t{c.block_n} * c.cluster_n);
  std::vector<Raster> known{same_walk(c.raster, tiles_m, tiles_n)}, others;
  if (std::min(tiles_m, tiles_n) <= 1) return others;
  for (const Raster& raster : kRasters) {
    const Raster other = raster.of_columns ? columns_of(raster.band, tiles_n) : raster;
    const Raster walk = same_walk(other, tiles_m, tiles_n);
    if (std::ranges::find(known, walk) != known.end()) continue;
    known.push_back(walk);
    others.push_back(other);
  }
  return others;
}

}  // namespace octile
