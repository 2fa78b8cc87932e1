#include "generator/gemm/constraints.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace octile {
namespace {

constexpr int kFewestStages = 3;

bool device_has_instructions(const GemmConfig& c, const GemmSetting& s) {
  const bool copies = c.copies == Copies::kCpAsync || (s.device.has_tma && s.device.has_setmaxnreg);
  return s.device.has_unit(c.unit) && copies;
}
bool copies_suit_unit(const GemmConfig& c, const GemmSetting&) {
  return c.copies == Copies::kTma || multiplies_by_warps(c);
}
bool lanes_copy_alone(const GemmConfig& c, const GemmSetting&) {
  return c.copies == Copies::kTma || (cluster_size(c) == 1 && !c.pdl_early);
}
bool only_tma_stores_staged(const GemmConfig& c, const GemmSetting&) {
  return c.copies == Copies::kTma || c.store == EpilogueStore::kDirect;
}
// Values that the enumeration leaves out for units other than WGMMA.
bool warps_have_plain_loops(const GemmConfig& c, const GemmSetting&) {
  const GemmConfig usual;
  if (c.unit == MatrixUnit::kWgmma) return true;
  const bool is_plain =
      c.unroll == usual.unroll && c.tail_n == usual.tail_n && !c.hold_scales && !c.mma_factors;
  const bool is_alone = c.cluster_m == 1 && c.cluster_n == 1 && c.in_flight == usual.in_flight;
  return is_plain && (is_alone || !multiplies_by_warps(c));
}
// Sums of strips lie beside each other in the lanes of a warp, which has 32. A second thread block
// of the SM, or the next kernel's, would wait for tensor memory in its first instructions.
bool tensor_memory_holds_sums(const GemmConfig& c, const GemmSetting& s) {
  if (c.unit != MatrixUnit::kTcgen05) return true;
  const bool is_alone = c.ctas_per_sm == 1 && !c.pdl_early;
  const bool fits = tensor_columns(s.problem, c) <= kTensorColumns &&
                    c.block_m <= 128 * tensor_products(s.problem, c);
  const bool promotes_mx = scheme_of(s.problem) == Scheme::kMx && !has_scales_inside(s.problem);
  return is_alone && fits && !promotes_mx;
}
// PTX ISA, "Matrix Shape" of tcgen05: kind::mxf8f6f4 has M = 128.
bool scaled_products_have_128_rows(const GemmConfig& c, const GemmSetting& s) {
  return tensor_scale_groups(s.problem, c).of_a == 0 || rows_of_consumer(s.problem, c) == 128;
}
// Returns true if ptxas emulates mma.sync of FP8 by that of FP16: on devices with a unit of their
// own.
bool is_emulated(const GemmConfig& c, const DeviceSpec& device) {
  return multiplies_by_warps(c) && !device.units.empty() &&
         !multiplies_by_warps(device.units.front());
}
// If the instruction is emulated, operands take registers of fp16 as well.
bool warps_have_registers(const GemmConfig& c, const GemmSetting& s) {
  if (!multiplies_by_warps(c)) return true;
  const bool two_strips = c.block_m > 64 * c.consumer_warpgroups;
  if (two_strips && is_emulated(c, s.device)) return false;
  const bool holds_strip = is_emulated(c, s.device) && has_long_sums(s.problem.promote) &&
                           s.problem.promote != kPromoteNone;
  const int most_columns = holds_strip ? 48 : two_strips || is_emulated(c, s.device) ? 64 : 128;
  const int columns = columns_of_warp(s.problem, c);
  return c.block_m <= 128 && c.block_n <= 128 && columns <= most_columns &&
         c.consumer_warpgroups <= 2;
}
bool tile_is_whole_strips(const GemmConfig& c, const GemmSetting&) {
  if (c.block_m == 16 || c.block_m == 32) return c.consumer_warpgroups == 1;
  return c.consumer_warpgroups >= 1 && c.consumer_warpgroups <= 3 && c.block_m > 0 &&
         c.block_m % (64 * c.consumer_warpgroups) == 0;
}
bool tile_fits_instruction(const GemmConfig& c, const GemmSetting&) {
  return c.block_n >= 16 && c.block_n <= 256 && c.block_n % 16 == 0 && c.block_k == 128;
}
bool boxes_fit_tma(const GemmConfig& c, const GemmSetting& s) {
  const GemmResources r = resources_of(s.problem, c, s.device);
  return r.a_box_rows <= 256 && r.b_box_rows <= 256;
}
bool cluster_shares_one_operand(const GemmConfig& c, const GemmSetting&) {
  const bool one_sided = c.cluster_m == 1 || c.cluster_n == 1;
  const bool size = c.cluster_m >= 1 && c.cluster_n >= 1 && c.cluster_m * c.cluster_n <= 2;
  return one_sided && size && c.block_m % (8 * c.cluster_n) == 0 &&
         c.block_n % (8 * c.cluster_m) == 0;
}
bool device_has_clusters(const GemmConfig& c, const GemmSetting& s) {
  const bool shares = c.cluster_m * c.cluster_n > 1;
  return (!shares || s.device.has_multicast) && (c.splits == 1 || s.device.has_clusters);
}
bool ring_is_a_pipeline(const GemmConfig& c, const GemmSetting&) {
  return c.stages >= kFewestStages && c.stages <= kMostStages;
}
bool fits_shared_memory(const GemmConfig& c, const GemmSetting& s) {
  return resources_of(s.problem, c, s.device).smem.total_bytes <= smem_limit(c, s.device);
}
// Returns the registers of a consumer that promotes whole K-blocks, or `parts` if it promotes parts
// of them.
int registers_of_blocks(const GemmConfig& c, int parts) {
  return parts_of_block(c.promote) > 1 ? parts : c.in_flight > 2 ? 50 : c.in_flight > 1 ? 40 : 32;
}
// Returns the registers that a consumer needs beside its sums.
int registers_beside_sums(const GemmConfig& c, const GemmProblem& p) {
  const int parts = c.unroll > 1 ? 60 : 56;
  switch (scheme_of(p)) {
    case Scheme::kBlockB: {
      // A tile that straddles blocks of B has a scale for each run of its columns.
      const int runs = column_segments(c);
      return registers_of_blocks(c, parts + (runs > 1 ? runs : 0));
    }
    case Scheme::kMx:
      // Four scales of columns are read at once, for which a split K's store leaves too few.
      return c.splits > 1 && p.b.granularity == Granularity::k1x32 ? 44 : 40;
    case Scheme::kRowB:
    case Scheme::kPerRow:
    case Scheme::kPerTensor:
      break;
  }
  return registers_of_blocks(c, parts);
}
// Returns those of a warp that multiplies by itself: a K-block of A and of 16 columns of B, partial
// sums of these, addresses and loop state.
int registers_beside_warp_sums(const GemmConfig& c) {
  const int strips = std::max(1, c.block_m / (64 * c.consumer_warpgroups));
  // Parts of a K-block are under way together.
  const int parts = parts_of_block(c.promote) > 1 ? 60 * strips : 0;
  return 16 * strips + 16 + 40 + parts;
}
// Returns those of a consumer whose scales the tensor core multiplies.
int registers_beside_factors(const GemmConfig& c) {
  const bool several_strips = c.block_m > 64 * c.consumer_warpgroups;
  return several_strips ? 36 : 24;
}
// Returns those of a consumer that reads 32 columns of its sums at a time.
int registers_beside_tensor_memory(const GemmConfig& c, const GemmProblem& p) {
  return 16 * strips_of_consumer(p, c) + 40;
}
bool fits_registers(const GemmConfig& c, const GemmSetting& s) {
  const GemmResources r = resources_of(s.problem, c, s.device);
  const bool three_give_up = c.consumer_warpgroups == 3 && copy_thread_holds_more(s.problem);
  const int others = c.unit == MatrixUnit::kTcgen05 ? registers_beside_tensor_memory(c, s.problem)
                     : multiplies_by_warps(c)       ? registers_beside_warp_sums(c)
                     : c.mma_factors                ? registers_beside_factors(c)
                     : three_give_up                ? 24
                     : c.hold_scales                ? 8
                                                    : registers_beside_sums(c, s.problem);
  return r.accumulator_registers + others <= r.consumer_registers &&
         c.ctas_per_sm * r.registers <= s.device.registers_per_sm &&
         c.ctas_per_sm * r.threads <= s.device.threads_per_sm;
}
bool promotion_matches(const GemmConfig& c, const GemmSetting& s) {
  return c.promote == s.problem.promote;
}
bool splits_are_allowed(const GemmConfig& c, const GemmSetting& s) {
  if (c.splits == 1) return true;
  const std::int64_t k = k_at(s.problem, s.tokens);
  const bool every_rank_has_a_block = k == kDynamic || c.splits <= ceil_div(k, 128);
  const bool every_rank_has_columns = c.splits <= columns_of_consumer(s.problem, c) / 8;
  return c.splits >= 2 && c.splits <= kPortableCluster && !s.problem.invariant &&
         every_rank_has_a_block && every_rank_has_columns;
}
bool cluster_splits_or_shares(const GemmConfig& c, const GemmSetting&) {
  return c.splits == 1 || (c.cluster_m == 1 && c.cluster_n == 1);
}
bool two_ctas_share_an_sm(const GemmConfig& c, const GemmSetting& s) {
  return c.ctas_per_sm == 1 ||
         (c.ctas_per_sm == 2 && c.consumer_warpgroups == 1 && !is_emulated(c, s.device));
}
// Whether the ring of a tile leaves an SM of less shared memory than Hopper's no room to stage D.
bool leaves_no_staging(const GemmConfig& c, const GemmSetting& s) {
  if (!multiplies_by_warps(c)) return false;
  GemmConfig staged = c;
  staged.store = EpilogueStore::kTma;
  staged.stages = kFewestStages;
  return resources_of(s.problem, staged, s.device).smem.total_bytes > smem_limit(c, s.device);
}
bool store_suits_tile(const GemmConfig& c, const GemmSetting& s) {
  const bool only_direct = c.splits > 1 || !can_stage(s.problem) || c.copies == Copies::kCpAsync;
  if (only_direct) return c.store == EpilogueStore::kDirect;
  if (c.store == EpilogueStore::kDirect && leaves_no_staging(c, s)) return true;
  if (s.problem.d.dtype == DType::kFP32) {
    const bool whole_panels =
        c.block_m >= 64 && columns_of_consumer(s.problem, c) % 32 == 0 && c.ctas_per_sm == 1;
    return c.store == (whole_panels ? EpilogueStore::kTma : EpilogueStore::kDirect);
  }
  return c.store == EpilogueStore::kTma || c.block_n <= 32;
}
bool tiles_hold_scale_blocks(const GemmConfig& c, const GemmSetting& s) {
  if (!is_fp8(s.problem.d.dtype)) return true;
  return columns_of_consumer(s.problem, c) == 128 && c.splits == 1 && c.tail_n == 0 &&
         c.store == EpilogueStore::kTma;
}
bool short_tiles_are_narrow(const GemmConfig& c, const GemmSetting&) {
  return c.block_m >= 64 || c.block_n <= 128;
}
bool tall_tiles_are_wide(const GemmConfig& c, const GemmSetting&) {
  return c.block_m <= 128 || c.block_n >= 96;
}
bool clusters_pay(const GemmConfig& c, const GemmSetting&) {
  const bool rows_of_few_tokens =
      c.cluster_m == 2 && c.block_m == 64 && c.block_n >= 64 && c.ctas_per_sm == 1;
  return (c.cluster_m == 1 && c.cluster_n == 1) || (c.block_m >= 128 && c.block_n >= 96) ||
         rows_of_few_tokens;
}
bool large_tiles_stay_whole(const GemmConfig& c, const GemmSetting&) {
  return c.splits == 1 || (c.block_m <= 128 && c.block_n <= 128);
}
bool overlap_fits_pass(const GemmConfig& c, const GemmSetting& s) {
  if (c.unit == MatrixUnit::kTcgen05) return c.in_flight >= 1 && c.in_flight <= kMostSlots;
  const int strips = std::max(1, c.block_m / (64 * c.consumer_warpgroups));
  return c.unroll >= 1 && c.in_flight >= 1 && c.in_flight <= 4 && c.unroll <= c.stages &&
         c.in_flight <= c.unroll * strips * parts_of_block(s.problem.promote);
}
// NVRTC's time grows by about 1 ms on one core with each addition of a thread in one pass of the
// main loop, because the loop is unrolled. So is the store, which is longer with a sentry and if it
// reads D.
bool compiles_in_time(const GemmConfig& c, const GemmSetting& s) {
  const bool long_store = has_sentry(s.problem) || (s.problem.accumulate && !can_stage(s.problem));
  const int parts = parts_of_block(c.promote);
  // With scales in tensor memory fp32 D takes as long as with promotions.
  const bool long_fp32 =
      s.problem.d.dtype == DType::kFP32 && tensor_scale_groups(s.problem, c).of_a == 0;
  const bool fp32_or_long = long_store || long_fp32;
  const int most =
      parts > 1 ? (long_store ? 160 : 256) : (fp32_or_long && has_long_sums(c.promote) ? 96 : 128);
  const int strips = strips_of_consumer(s.problem, c);
  const int columns = columns_of_warp(s.problem, c) + c.tail_n;
  return parts * c.unroll * strips * columns / 2 <= most;
}
bool early_next_is_for_few_rows(const GemmConfig& c, const GemmSetting& s) {
  return !c.pdl_early || (c.block_m <= 128 && c.cluster_n == 1 && !groups_k(s.problem));
}
bool tail_tiles_are_halves(const GemmConfig& c, const GemmSetting& s) {
  if (c.tail_n == 0) return true;
  if (stages_scales_of_columns(scheme_of(s.problem))) return false;
  return c.tail_n == 64 && c.block_m == 192 && c.block_n == 128 && c.consumer_warpgroups == 3 &&
         cluster_size(c) == 1 && c.unroll == 1 && c.in_flight == 1 && !c.pdl_early &&
         c.promote == 128;
}
// One consumer's strips use what it holds; with one strip nothing is gained.
bool held_scales_serve_strips(const GemmConfig& c, const GemmSetting& s) {
  if (!c.hold_scales) return true;
  const GemmProblem& p = s.problem;
  const bool plain_sums =
      p.d.dtype == DType::kFP32 && !p.bias && !has_sentry(p) && p.promote == 128;
  return stages_scales_of_columns(scheme_of(p)) && plain_sums && c.consumer_warpgroups == 2 &&
         c.block_m == 256 && c.in_flight == 1 && c.ctas_per_sm == 1 && cluster_size(c) == 1;
}
bool factors_are_powers(const GemmConfig& c, const GemmSetting& s) {
  if (!c.mma_factors) return true;
  if (groups_k(s.problem) && c.consumer_warpgroups == 1) return false;
  if (is_batched(s.problem) && c.consumer_warpgroups == 1 && c.block_m > 64) return false;
  return has_power_scales(s.problem) && c.in_flight == 1 && s.problem.promote == 128 &&
         c.block_m >= 64 && c.block_n >= 64 && !c.hold_scales;
}
// Beside three consumers the copy thread has 32 registers, which do not hold the addresses of two
// operands' scales and a cluster's slices. A consumer has too few for parts of K-blocks with more
// than two products in flight, in a cluster with two other consumers, or of four K-blocks beside
// another CTA; and, as one of three, for groups' fp32 sums onto D whose columns have several scales
// of B.
bool roles_have_registers(const GemmConfig& c, const GemmSetting& s) {
  const bool whole_blocks = parts_of_block(c.promote) == 1;
  const bool three_share = c.consumer_warpgroups == 3 && c.cluster_m * c.cluster_n > 1;
  const bool more_state = stages_scales_of_columns(scheme_of(s.problem)) || s.problem.bias ||
                          has_sentry(s.problem) || is_grouped(s.problem);
  if (three_share && (more_state || !whole_blocks)) return false;
  const bool adds_onto_rows_of_groups =
      groups_rows(s.problem) && s.problem.accumulate && s.problem.d.dtype == DType::kFP32;
  if (c.consumer_warpgroups == 3 && adds_onto_rows_of_groups && column_segments(c) > 1)
    return false;
  if (c.ctas_per_sm == 2 && c.unroll > 2 && !whole_blocks) return false;
  return c.in_flight <= 2 || whole_blocks || c.unit == MatrixUnit::kTcgen05;
}
constexpr int kMostSegments = 9;  // with several GEMMs
bool tiles_suit_groups(const GemmConfig& c, const GemmSetting& s) {
  if (!is_grouped(s.problem)) return true;
  const bool shares_b = groups_rows(s.problem) && c.cluster_m > 1;
  if (column_segments(c) > kMostSegments) return false;
  return c.tail_n == 0 && (cluster_size(c) == 1 || (shares_b && cluster_size(c) == c.cluster_m));
}
bool mx_tiles_are_plain(const GemmConfig& c, const GemmSetting& s) {
  if (scheme_of(s.problem) != Scheme::kMx) return true;
  const GemmProblem& p = s.problem;
  const bool has_slots = c.unit == MatrixUnit::kTcgen05;
  if (p.b.granularity == Granularity::k1x32) {
    if (p.bias && p.accumulate && c.block_n > 112 && !has_slots) return false;
  } else if (c.block_n % 32 != 0) {
    return false;
  }
  const bool promotes_parts = multiplies_by_warps(c) && !has_scales_inside(p);
  if (promotes_parts && columns_of_warp(p, c) > 64) return false;
  return c.unroll == 1 && (c.in_flight == 1 || has_slots) && c.tail_n == 0 && c.ctas_per_sm == 1 &&
         c.cluster_m * c.cluster_n == 1;
}
bool batches_work_alone(const GemmConfig& c, const GemmSetting& s) {
  if (!is_batched(s.problem)) return true;
  const bool many_scales =
      !stages_scales_of_columns(scheme_of(s.problem)) && column_segments(c) > kMostSegments;
  return cluster_size(c) == 1 && c.tail_n == 0 && !many_scales;
}
bool long_sums_overlap_themselves(const GemmConfig& c, const GemmSetting&) {
  return !has_long_sums(c.promote) ||
         (c.unroll == 1 && (c.in_flight == 1 || c.unit == MatrixUnit::kTcgen05));
}
bool unit_multiplies_scales(const GemmConfig& c, const GemmSetting& s) {
  return !has_scales_inside(s.problem) || c.unit == MatrixUnit::kMmaScaled ||
         c.unit == MatrixUnit::kTcgen05;
}
bool raster_is_positive(const GemmConfig& c, const GemmSetting&) { return c.raster.band >= 1; }

// In the order in which they are checked: first kTileRules of tiles, last kRingRules of rings.
constexpr std::size_t kTileRules = 7;
constexpr std::size_t kRingRules = 3;
constexpr std::array kConstraints{
    GemmConstraint{
        "device_has_instructions",
        "the unit is one of the device's, and with "
        "copies=tma the device has TMA and setmaxnreg, by which a kernel copies and moves "
        "registers between its roles",
        device_has_instructions},
    GemmConstraint{"warps_have_registers",
                   "warps that multiply by themselves (unit=mma, mma_scaled) have tiles of at most "
                   "128 rows and columns and one or two consumer warpgroups, and with 128 rows of "
                   "one at most 64 columns; at most 64 columns of a warp and 64 rows of a consumer "
                   "where ptxas emulates the instruction (compute capability 9.0 and 10.x), 48 in "
                   "sums of 256 or 512 of K: beyond, ptxas 13.0 spills",
                   warps_have_registers},
    GemmConstraint{
        "copies_suit_unit",
        "WGMMA reads what TMA has copied: copies=cp_async is for unit=mma and mma_scaled",
        copies_suit_unit},
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
                   "tail tiles are the halves, of 64 columns, of tiles of 192x128 by three "
                   "consumers, alone and one product of a whole K-block at a time: the rounds of "
                   "others are shorter, they lose by themselves what an even last round gains "
                   "(measured), or they spill, as where B has a scale a row",
                   tail_tiles_are_halves},
    GemmConstraint{
        "warps_have_plain_loops",
        "with a unit other than wgmma a pass is one K-block (unroll=1), all "
        "tiles are whole (no tail_n), and scales are read and multiplied by each thread (no "
        "scales=held, no factors=mma); with unit=mma or mma_scaled inflight=1 and no "
        "operand is shared (cluster=1x1)",
        warps_have_plain_loops},
    GemmConstraint{"tensor_memory_holds_sums",
                   "with unit=tcgen05 the slots of all products, and the scales of all stages that "
                   "products multiply, fit the 512 columns of tensor "
                   "memory and a product the lanes of a warp (two strips), the thread block has "
                   "the SM for itself (ctas=1, pdl=end), and MX is not promoted",
                   tensor_memory_holds_sums},
    GemmConstraint{
        "scaled_products_have_128_rows",
        "with unit=tcgen05 a product that multiplies scales has 128 rows: a tile has 128 "
        "rows for each, of one consumer or of two that share its columns",
        scaled_products_have_128_rows},
    GemmConstraint{"lanes_copy_alone",
                   "with copies=cp_async no thread block shares an operand or its K with others "
                   "(cluster=1x1, splits=1), and no kernel starts early (pdl=end)",
                   lanes_copy_alone},
    GemmConstraint{"only_tma_stores_staged",
                   "D goes through shared memory only to TMA: copies=cp_async has store=direct",
                   only_tma_stores_staged},
    GemmConstraint{"cluster_shares_one_operand",
                   "a cluster is 1x1, 2x1 or 1x2 and its slices are whole 8-row swizzle atoms",
                   cluster_shares_one_operand},
    GemmConstraint{
        "device_has_clusters",
        "CTAs share operands by multicast within a cluster, and split K in clusters alone",
        device_has_clusters},
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
                   "one CTA an SM, or two of one consumer warpgroup each (half of the registers), "
                   "which are too few where mma.sync is emulated",
                   two_ctas_share_an_sm},
    GemmConstraint{
        "store_suits_tile",
        "split K, and sums that are added to bf16 D or with a sentry, are stored "
        "directly; otherwise D goes through TMA (fp32 in panels of 64 rows and 32 columns "
        "of one CTA an SM), and directly only where "
        "rows of at most 64 bytes leave TMA nothing to gain (wider tiles lose up to a "
        "third: measured), or where unit=mma or mma_scaled and a ring of three stages leave no "
        "room to stage D",
        store_suits_tile},
    GemmConstraint{"tiles_hold_scale_blocks",
                   "FP8 D goes through TMA from tiles of 128 columns with all of K and no tail: "
                   "a tile is one scale block across, and one warp holds a block",
                   tiles_hold_scale_blocks},
    GemmConstraint{
        "compiles_in_time",
        "a pass adds at most 128 promoted sums a thread, 256 where parts of a K-block are "
        "promoted, and 160 of these if the store has a sentry or reads D; in sums of more than 128 "
        "of K at most 96 if it does, or if D is fp32 and tcgen05 multiplies no scales: beyond, a "
        "cold compile takes more than 250 ms for at most 1 % of speed (measured)",
        compiles_in_time},
    GemmConstraint{"early_next_is_for_few_rows",
                   "the next kernel starts early only behind tiles of at most 128 rows that share "
                   "no A, and not where K has groups: its CTAs land where SMs become free, and "
                   "tiles that read the same rows "
                   "of B no longer side by side (measured: 2 % and more)",
                   early_next_is_for_few_rows},
    GemmConstraint{"held_scales_serve_strips",
                   "B's scales are held where B has one a row and two consumers of two strips each "
                   "have one product in flight and store plain fp32 sums: only there do registers "
                   "suffice and are reads saved",
                   held_scales_serve_strips},
    GemmConstraint{
        "factors_are_powers",
        "the tensor core multiplies scales if those of both operands are powers of two "
        "and B has one a row, for products of whole K-blocks and at least 64 rows and columns, "
        "one in flight; one consumer has no groups of K, and of a batch at most 64 rows: beyond, "
        "ptxas 13.0 spills",
        factors_are_powers},
    GemmConstraint{"roles_have_registers",
                   "three consumers share no operand where B has a scale a row, D has a bias or a "
                   "sentry, there are groups, or parts of a K-block are promoted, and add no "
                   "fp32 sums onto D of grouped rows where a tile's columns have several scales of "
                   "B; at most two products of parts are "
                   "in flight (slots of unit=tcgen05 do not count), and two CTAs an SM unroll "
                   "parts of at most two K-blocks: otherwise "
                   "ptxas 13.0 spills",
                   roles_have_registers},
    GemmConstraint{
        "tiles_suit_groups",
        "K of groups is not split and A of them not shared, since boxes of A are clipped "
        "where a group ends; a cluster of row groups may share B; a last round that is only "
        "known on the device has no tail tiles; with more than 9 scales of B across a tile ptxas "
        "13.0 spills",
        tiles_suit_groups},
    GemmConstraint{"batches_work_alone",
                   "CTAs of a batch share no operand, split no K and have no tail tiles: the many "
                   "tiles of all matrices fill the SMs; with more than 9 scales of B across a tile "
                   "ptxas 13.0 spills",
                   batches_work_alone},
    GemmConstraint{"long_sums_overlap_themselves",
                   "sums of more than 128 of K keep a WGMMA group in flight themselves, so a pass "
                   "is one K-block and one product in flight, but for slots of unit=tcgen05",
                   long_sums_overlap_themselves},
    GemmConstraint{
        "mx_tiles_are_plain",
        "MX has two products of a K-block in flight by itself (slots of unit=tcgen05 do not "
        "count), one CTA an SM and no "
        "shared operands or tail tiles; a tile is whole 32x32 blocks wide, and with a "
        "scale a row of B at most 112 columns where a bias and D are added, but for unit=tcgen05, "
        "and with unit=mma or mma_scaled 64 of a warp (ptxas 13.0 spills beyond)",
        mx_tiles_are_plain},
    GemmConstraint{"unit_multiplies_scales",
                   "only unit=mma_scaled and unit=tcgen05 multiply scales of blocks themselves, as "
                   "promote=none asks of them",
                   unit_multiplies_scales},
    GemmConstraint{"raster_is_positive", "a raster band is at least one tile wide",
                   raster_is_positive},
    GemmConstraint{"splits_are_allowed",
                   "K is split 1 to 8 times (a portable cluster), each split has a K-block and a "
                   "group of 8 columns of a consumer, and a batch-invariant problem is never split",
                   splits_are_allowed},
    GemmConstraint{"boxes_fit_tma", "a TMA box has at most 256 rows", boxes_fit_tma},
    GemmConstraint{
        "fits_registers",
        "accumulators and partial sums leave 32 of a consumer's registers with one product in "
        "flight (24 of three consumers' whose copy thread has 56), 40 with two, 50 with more (56 "
        "where parts of a K-block are promoted, 60 where K-blocks are unrolled as well, and one "
        "for each run of columns with a scale of its own; 40 of MX, 44 where it splits K and B has "
        "a scale a row; 24 where the tensor core multiplies scales, 36 with several strips) "
        "for addresses, scales and loop state (ptxas 13.0 spills below); the CTAs "
        "of an SM have its registers and threads",
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
                   "products in flight; with unit=tcgen05 a product's sums have 1 to 4 slots",
                   overlap_fits_pass},
};

}  // namespace

int smem_limit(const GemmConfig& c, const DeviceSpec& device) {
  const int share = device.smem_per_sm_bytes / std::max(c.ctas_per_sm, 1) - kReservedSmemPerBlock;
  return std::min(share, device.max_smem_per_block_bytes);
}

std::span<const GemmConstraint> gemm_constraints() { return kConstraints; }

const GemmConstraint* refused_by(const GemmConfig& config, const GemmProblem& problem,
                                 std::int64_t tokens, const DeviceSpec& device) {
  return first_refusal(gemm_constraints(), config, {problem, tokens, device});
}

std::optional<std::string> rejection_reason(const GemmConfig& config, const GemmProblem& problem,
                                            std::int64_t tokens, const DeviceSpec& device) {
  const GemmConstraint* rule = refused_by(config, problem, tokens, device);
  if (rule != nullptr) return fmt::format("{} refuses it: {}", rule->name, rule->reason);
  if (device.is_unused(config.unit))
    return fmt::format("no test of the unit {} has passed on this device", name_of(config.unit));
  if (has_scales_inside(problem) && !device.multiplies_scales(config.unit))
    return fmt::format(
        "no test of the unit {} with scales in the instruction has passed on this device",
        name_of(config.unit));
  return std::nullopt;
}

GemmRules gemm_rules() {
  const std::span<const GemmConstraint> all = kConstraints;
  return {all.first(kTileRules), all.subspan(kTileRules, all.size() - kTileRules - kRingRules),
          all.last(kRingRules)};
}

}  // namespace octile
