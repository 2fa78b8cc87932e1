// Mistakes that a kernel by tcgen05 could have. Each is an edit of an emitted text, and the
// emulation has to find each under some schedule.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <variant>

#include "generator/families.h"
#include "tests/support/gemm_variants.h"

namespace octile::emulation {

struct Edit {
  std::string_view from, to;  // `from` stands once in the emitted text
};

struct Mutant {
  std::string_view name;
  std::string_view config;  // one of those below
  Edit edit;
  Edit also = {}, third = {};  // empty: there are no more
};

// Two products of consumers with rows of their own; sums of two K-blocks; FP8 D in boxes of 64
// rows; two consumers side by side; a cluster, and one whose products sum all of K; scales in the
// instruction, of tiles that lie in several blocks of B, by one product and by two; packed scales
// of columns; MX.
constexpr std::string_view kOfItems =
    "tile=256x96x128 stages=3 wg=2 inflight=2 store=direct unit=tcgen05";
constexpr std::string_view kOfIntervals =
    "tile=128x64x128 stages=3 wg=1 inflight=2 store=direct promote=256 unit=tcgen05";
constexpr std::string_view kOfBoxes = "tile=128x128x128 stages=3 wg=1 inflight=2 unit=tcgen05";
constexpr std::string_view kOfColumns = "tile=128x192x128 stages=3 wg=2 inflight=2 unit=tcgen05";
constexpr std::string_view kOfClusters =
    "tile=128x96x128 stages=3 wg=1 inflight=1 cluster=2x1 unit=tcgen05";
constexpr std::string_view kOfWholeK =
    "tile=128x96x128 stages=3 wg=2 inflight=2 cluster=2x1 promote=none unit=tcgen05";
constexpr std::string_view kOfScales =
    "tile=128x96x128 stages=3 wg=2 inflight=2 promote=none unit=tcgen05";
constexpr std::string_view kOfTwoProducts =
    "tile=256x112x128 stages=3 wg=2 inflight=1 promote=none unit=tcgen05";
constexpr std::string_view kOfColumnScales =
    "tile=128x80x128 stages=4 wg=1 inflight=2 store=direct promote=none unit=tcgen05";
constexpr std::string_view kOfMx =
    "tile=128x160x128 stages=3 wg=2 inflight=2 promote=none unit=tcgen05";
constexpr std::string_view kOfWideTiles =
    "tile=128x256x128 stages=3 wg=2 inflight=1 promote=none unit=tcgen05";

constexpr std::array kMutants{
    Mutant{"swizzle_of_32_bytes", kOfItems, {"(2u << 29)", "(1u << 29)"}},
    Mutant{"swizzle_of_64_bytes", kOfItems, {"(2u << 29)", "(4u << 29)"}},
    Mutant{"the_word_of_wgmma", kOfItems, {"(1024 >> 4) | (1u << 14) | (2u << 29)", "0x40000040u"}},
    Mutant{"stride_of_4_rows", kOfItems, {"(1024 >> 4) | (1u << 14)", "(512 >> 4) | (1u << 14)"}},
    Mutant{"no_version", kOfItems, {"(1u << 14) | (2u", "(2u"}},
    Mutant{"a_base_offset", kOfItems, {"(2u << 29) };", "(2u << 29) | (1u << 17) };"}},
    Mutant{"n_in_sixteens",
           kOfItems,
           {"(n / 8) << 17) | (static_cast<u32>(m / 16)",
            "(n / 16) << 17) | (static_cast<u32>(m / 16)"}},
    Mutant{"m_in_eights", kOfItems, {"(m / 16) << 24", "(m / 8) << 24"}},
    Mutant{"a_is_e5m2",
           kOfItems,
           {"(1u << 4) | (static_cast<u32>(kA) << 7)", "(1u << 4) | (1u << 7)"}},
    Mutant{"sums_in_fp16", kOfItems, {"return (1u << 4) | ", "return "}},
    Mutant{
        "b_is_transposed", kOfItems, {"return (1u << 4) | ", "return (1u << 16) | (1u << 4) | "}},
    Mutant{"steps_of_64_bytes",
           kOfItems,
           {"b + static_cast<u32>(2 * step)", "b + static_cast<u32>(4 * step)"}},
    Mutant{"products_of_64_rows",
           kOfItems,
           {"instruction_word<OCTILE_MMA_TYPES>(kRowsPerConsumer, cfg::kBlockN)",
            "instruction_word<OCTILE_MMA_TYPES>(64, cfg::kBlockN)"}},
    Mutant{"strips_64_rows_apart", kOfItems, {"kStripStep = 16,", "kStripStep = 64,"}},
    Mutant{"warps_of_16_rows", kOfItems, {"kWarpRows = kRowsPerConsumer / 4,", "kWarpRows = 16,"}},
    Mutant{"a_of_the_first_product",
           kOfItems,
           {"static_cast<u32>(product * kRowsPerConsumer * 128)", "0"}},
    Mutant{"products_share_slots",
           kOfItems,
           {"(product * kSlots + slot) * cfg::kBlockN", "slot * cfg::kBlockN"}},
    Mutant{"slots_share_columns",
           kOfItems,
           {"(product * kSlots + slot) * cfg::kBlockN", "(product * kSlots) * cfg::kBlockN"}},
    Mutant{"always_adds", kOfItems, {"step > 0 || goes_on ? 1 : 0", "1"}},
    Mutant{"never_adds", kOfItems, {"step > 0 || goes_on ? 1 : 0", "0"}},
    Mutant{"reads_the_first_strip",
           kOfItems,
           {"from + kColumn + (static_cast<u32>(strip * kStripStep) << 16)", "from + kColumn"}},
    Mutant{"reads_the_lanes_of_warp_0",
           kOfItems,
           {"static_cast<u32>(first_column) + (static_cast<u32>(warp * 32) << 16)",
            "static_cast<u32>(first_column)"}},
    Mutant{"reads_the_first_product",
           kOfItems,
           {"sums::column(index / kConsumersAcross, 0)", "sums::column(0, 0)"}},
    Mutant{"no_wait_for_loads", kOfItems, {"tcgen05::wait_loads(partial[strip]);", ""}},
    Mutant{"no_wait_for_products",
           kOfItems,
           {"mbarrier::wait(sums::ready(self.smem, self.index / kConsumersAcross, slot.stage), "
            "slot.phase);",
            ""}},
    Mutant{"waits_for_the_first_product",
           kOfItems,
           {"sums::ready(self.smem, self.index / kConsumersAcross, slot.stage)",
            "sums::ready(self.smem, 0, slot.stage)"}},
    Mutant{"no_fence_behind_the_wait",
           kOfItems,
           {"slot.phase);\n  tcgen05::fence_after();", "slot.phase);"}},
    Mutant{"no_fence_behind_the_loads",
           kOfItems,
           {"tcgen05::fence_before();\n  __syncwarp();", "__syncwarp();"}},
    Mutant{"no_fence_before_the_issue",
           kOfItems,
           {"tcgen05::fence_after();\n          multiply_part", "multiply_part"}},
    Mutant{"lanes_do_not_meet",
           kOfItems,
           {"tcgen05::fence_before();\n  __syncwarp();", "tcgen05::fence_before();"}},
    Mutant{"a_lane_speaks_for_itself",
           kOfItems,
           {"    tcgen05::fence_after();\n    tcgen05::fence_before();\n    mbarrier::arrive",
            "    mbarrier::arrive"}},
    Mutant{"no_wait_for_readers",
           kOfItems,
           {"if (begins) mbarrier::wait(taken(smem, product, slot.stage), slot.phase ^ 1);", ""}},
    Mutant{"waits_for_readers_of_the_first_product",
           kOfItems,
           {"taken(smem, product, slot.stage), slot.phase ^ 1",
            "taken(smem, 0, slot.stage), slot.phase ^ 1"}},
    Mutant{"a_slot_is_handed_back_before_it_is_read",
           kOfItems,
           {"      read_slot(self, ring.slot, [&](int strip, const auto& partial, int first) {\n"
            "        last",
            "      const SlotPosition read = ring.slot;\n"
            "      hand_slot_back(self, ring.slot);\n"
            "      read_slot(self, read, [&](int strip, const auto& partial, int first) {\n"
            "        last"},
           {"      hand_slot_back(self, ring.slot);\n    }\n", "    }\n"}},
    Mutant{"no_commit",
           kOfItems,
           {"if (ends) tcgen05::commit(ready(smem, product, slot.stage));", ""}},
    Mutant{"commit_before_the_products",
           kOfItems,
           {"!begins);\n          if (ends) tcgen05::commit(ready(smem, product, slot.stage));",
            "!begins);"},
           {"          multiply_part(smem, first",
            "          if (ends) tcgen05::commit(ready(smem, product, slot.stage));\n"
            "          multiply_part(smem, first"}},
    Mutant{"ready_keeps_its_phase", kOfItems, {"slot.stage), slot.phase);", "slot.stage), 0);"}},
    Mutant{
        "taken_keeps_its_phase", kOfItems, {"slot.stage), slot.phase ^ 1);", "slot.stage), 1);"}},
    Mutant{"a_consumer_stays_in_a_slot", kOfItems, {"  }\n  slot.advance();", "  }"}},
    Mutant{"the_issuer_stays_in_a_slot", kOfItems, {"if (ends) slot.advance();", ""}},
    Mutant{"stage_is_released_before_its_products",
           kOfItems,
           {"      wait_for_sums(self, ring.slot);\n      read_slot",
            "      release_stage(self, stage, true); wait_for_sums(self, ring.slot);\n      "
            "read_slot"},
           {"release_stage(self, stage, has_come(last));", ""}},
    Mutant{"half_of_the_columns",
           kOfItems,
           {"tcgen05::allocate(smem.base + kAddressOffset, kTensorColumns)",
            "tcgen05::allocate(smem.base + kAddressOffset, kTensorColumns / 2)"}},
    Mutant{"memory_is_kept",
           kOfItems,
           {"tcgen05::release(address(smem), kTensorColumns);", "(void)0;"}},
    Mutant{"memory_is_given_back_before_all_have_read",
           kOfItems,
           {"  tcgen05::fence_before();\n  __syncthreads();\n  tcgen05::fence_after();\n", ""}},
    Mutant{"memory_is_given_back_without_a_meeting",
           kOfItems,
           {"  tcgen05::fence_before();\n  __syncthreads();\n  tcgen05::fence_after();\n",
            "  tcgen05::fence_before();\n  tcgen05::fence_after();\n"}},
    Mutant{"two_threads_issue_and_one_commits",
           kOfItems,
           {"if (elect_one()) issue_all", "if (threadIdx.x % 32 < 2) issue_all"},
           {"    tcgen05::multiply(d, a",
            "    if (step / 2 != static_cast<int>(threadIdx.x % 32)) continue;\n"
            "    tcgen05::multiply(d, a"},
           {"if (ends) tcgen05::commit(ready",
            "if (ends && threadIdx.x % 32 == 0) "
            "tcgen05::commit(ready"}},
    // The rules of PTX ISA alone forbid this one: sums are right under every schedule.
    Mutant{"one_warp_waits_for_products",
           kOfItems,
           {"  mbarrier::wait(sums::ready(self.smem, self.index / kConsumersAcross, slot.stage), "
            "slot.phase);",
            "  if (self.warp == 0)\n"
            "    mbarrier::wait(sums::ready(self.smem, self.index / kConsumersAcross, slot.stage), "
            "slot.phase);\n"
            "  named_barrier(self.index + 1, 128);"}},
    Mutant{"an_interval_begins_anew", kOfIntervals, {"!begins);\n", "false);\n"}},
    Mutant{"intervals_go_on", kOfIntervals, {"!begins);\n", "true);\n"}},
    Mutant{"the_last_interval_is_lost",
           kOfIntervals,
           {"of_item == kIntervalBlocks || block == range.last - 1", "of_item == kIntervalBlocks"}},
    Mutant{"an_interval_is_longer",
           kOfIntervals,
           {"of_item == kIntervalBlocks ||", "of_item > kIntervalBlocks ||"}},
    Mutant{"no_commit_of_stages",
           kOfIntervals,
           {"if constexpr (kIntervalBlocks != 1) commit_stage(smem, ring.stage);", ""}},
    Mutant{"stages_are_committed_before_their_products",
           kOfIntervals,
           {"if constexpr (kIntervalBlocks != 1) commit_stage(smem, ring.stage);", ""},
           {"      if constexpr (kScalesInWord > 0) copy_scales(smem, first, ring.stage, "
            "ring.phase);\n",
            "      if constexpr (kIntervalBlocks != 1) commit_stage(smem, ring.stage);\n"}},
    Mutant{"the_last_commits_of_stages_come_late",
           kOfIntervals,
           {"mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);\n      ring.advance();",
            "ring.advance();"}},
    Mutant{"strips_are_boxes", kOfBoxes, {"strip : warp * kWarpRows / 64", "strip : strip"}},
    Mutant{"all_rows_in_the_first_box", kOfBoxes, {"strip : warp * kWarpRows / 64", "strip : 0"}},
    Mutant{"strips_share_rows_of_a_box",
           kOfBoxes,
           {"warp * kWarpRows % 64 + strip * kStripStep", "warp * kWarpRows % 64"}},
    Mutant{"scales_of_d_by_strips_of_64",
           kOfBoxes,
           {"limits, row + strip * kStripStep, encode", "limits, row + strip * 64, encode"}},
    Mutant{"scales_of_d_by_warps_of_16",
           kOfBoxes,
           {"row + self.warp * kWarpRows + self.lane / 4 + self.lane % 2 * 8",
            "row + self.warp * 16 + self.lane / 4 + self.lane % 2 * 8"}},
    Mutant{"the_other_box_is_not_stored",
           kOfBoxes,
           {"row + box * 64, limits.m, staging(self, box)", "row, limits.m, staging(self, 0)"}},
    Mutant{"both_consumers_read_the_first_columns",
           kOfColumns,
           {"static_cast<u32>(first_column) + (static_cast", "(static_cast"}},
    Mutant{"both_consumers_store_the_first_columns",
           kOfColumns,
           {"if constexpr (kWarpColumns < cfg::kBlockN) tile.n0 += self.first_column();", ""}},
    Mutant{"consumers_have_rows_of_their_own",
           kOfColumns,
           {"return index / kConsumersAcross * kRowsPerConsumer;",
            "return index * kRowsPerConsumer;"}},
    Mutant{"consumers_stage_in_one_place",
           kOfColumns,
           {"(self.index * kStrips + box) * kBoxBytes", "box * kBoxBytes"}},
    Mutant{"scales_of_the_first_columns",
           kOfColumns,
           {"(self.first_column() + kGroup * i) / kSegment", "(kGroup * i) / kSegment"}},
    Mutant{"one_consumer_hands_back_for_both",
           kOfColumns,
           {"mbarrier::init(taken(smem, 0, i), 4 * kConsumersAcross);",
            "mbarrier::init(taken(smem, 0, i), 4);"}},
    Mutant{"the_second_consumer_has_a_product",
           kOfColumns,
           {"sums::taken(self.smem, self.index / kConsumersAcross, slot.stage)",
            "sums::taken(self.smem, self.index, slot.stage)"}},
    // The rules of PTX ISA alone forbid this one too.
    Mutant{"the_address_comes_by_the_cluster_barrier",
           kOfClusters,
           {"  if constexpr (kShareSize > 1) __syncthreads();\n", ""}},
    Mutant{"a_commit_reaches_its_own_block_alone",
           kOfWholeK,
           {"tcgen05::commit_multicast(smem.empty(stage), kWholeCluster);",
            "tcgen05::commit(smem.empty(stage));"}},
    Mutant{"a_stage_waits_for_one_block",
           kOfWholeK,
           {"mbarrier::init(smem.empty(stage), sums::kReleases * kShareSize);",
            "mbarrier::init(smem.empty(stage), sums::kReleases);"}},
    Mutant{"products_without_scales",
           kOfScales,
           {"if constexpr (kScalesInWord > 0) {", "if constexpr (kScalesInWord > 9) {"}},
    Mutant{"scales_in_e4m3", kOfScales, {"<< 17) | (1u << 23) |", "<< 17) |"}},
    Mutant{"m_of_scales_in_sixteens", kOfScales, {"(m / 128) << 27", "(m / 16) << 27"}},
    Mutant{"n_of_scales_in_sixteens",
           kOfScales,
           {"(n / 8) << 17) | (1u << 23)", "(n / 16) << 17) | (1u << 23)"}},
    Mutant{"scales_of_16_rows_apart",
           kOfScales,
           {"(128 >> 4) | (1u << 14) }", "(256 >> 4) | (1u << 14) }"}},
    Mutant{"no_version_of_scales", kOfScales, {"(128 >> 4) | (1u << 14) }", "(128 >> 4) }"}},
    Mutant{"swizzled_scales",
           kOfScales,
           {"(128 >> 4) | (1u << 14) }", "(128 >> 4) | (1u << 14) | (2u << 29) }"}},
    Mutant{"stages_share_columns_of_scales",
           kOfScales,
           {"(stage * kScaleGroups + group) * 4", "(group + 0 * stage) * 4"}},
    Mutant{"scales_lie_in_the_sums", kOfScales, {"kSumColumns + (stage", "(stage"}},
    Mutant{"groups_of_scales_overlap",
           kOfScales,
           {"(stage * kScaleGroups + group) * 4", "(stage * kScaleGroups * 2 + group) * 2"}},
    Mutant{"scales_take_no_columns",
           kOfTwoProducts,
           {"kSumColumns + cfg::kStages * kScaleGroups * 4", "kSumColumns"}},
    Mutant{"copies_do_not_wait_for_products",
           kOfScales,
           {"  mbarrier::wait(smem.empty(stage), phase ^ 1);\n", ""}},
    Mutant{"no_fence_before_the_copies",
           kOfScales,
           {"phase ^ 1);\n  tcgen05::fence_after();\n#pragma unroll\n  for (int group",
            "phase ^ 1);\n#pragma unroll\n  for (int group"}},
    Mutant{
        "no_copies",
        kOfScales,
        {"if constexpr (kScalesInWord > 0) copy_scales(smem, first, ring.stage, ring.phase);", ""}},
    Mutant{"copies_behind_the_products",
           kOfScales,
           {"      if constexpr (kScalesInWord > 0) copy_scales(smem, first, ring.stage, "
            "ring.phase);\n",
            ""},
           {"if constexpr (kIntervalBlocks != 1) commit_stage(smem, ring.stage);",
            "copy_scales(smem, first, ring.stage, ring.phase);\n"
            "      commit_stage(smem, ring.stage);"}},
    Mutant{"copies_of_another_stage",
           kOfScales,
           {"copy_scales(smem, first, ring.stage, ring.phase)",
            "copy_scales(smem, first, (ring.stage + 1) % 3, ring.phase)"}},
    Mutant{"scales_of_b_for_a",
           kOfScales,
           {"first + scale_column(stage, product),", "first + scale_column(stage, kProducts),"}},
    Mutant{
        "scales_of_a_for_b",
        kOfScales,
        {"first + scale_column(stage, kProducts), adds", "first + scale_column(stage, 0), adds"}},
    Mutant{"scales_of_the_first_product",
           kOfTwoProducts,
           {"first + scale_column(stage, product),", "first + scale_column(stage, 0),"}},
    Mutant{"scales_of_the_first_128_rows",
           kOfTwoProducts,
           {"? smem.scales_a(stage) + group * kScaleGroupBytes", "? smem.scales_a(stage)"}},
    Mutant{"scales_of_the_first_128_columns",
           kOfWideTiles,
           {"(group - kProducts) * kScaleGroupBytes", "0 * kScaleGroupBytes"}},
    Mutant{"scales_of_128_columns_alone",
           kOfWideTiles,
           {"group < kScaleGroups; ++group", "group < kScaleGroups - 1; ++group"}},
    Mutant{"scales_of_one_block_of_b",
           kOfTwoProducts,
           {"(place.first + lane + 32 * kOfScale * i) / 128", "place.first / 128"}},
    Mutant{"a_block_behind_the_last",
           kOfTwoProducts,
           {"min((place.first + lane + 32 * kOfScale * i) / 128, place.last)",
            "(place.first + lane + 32 * kOfScale * i) / 128"}},
    Mutant{"a_row_behind_the_last",
           kOfColumnScales,
           {"scales + min(lane + 32 * i, place.last)", "scales + lane + 32 * i"}},
    Mutant{"the_first_block_of_a_word",
           kOfColumnScales,
           {"return __float_as_uint(word) >> (block % 4 * 8);", "return __float_as_uint(word);"}},
    Mutant{"a_word_for_each_block",
           kOfColumnScales,
           {"place.scales + block / Format::kBlocksOfWord * place.ld",
            "place.scales + block * place.ld"}},
    Mutant{
        "columns_of_the_first_tile",
        kOfColumnScales,
        {"const float* scales = from.scale_b + tile.n0;", "const float* scales = from.scale_b;"}},
    Mutant{"all_steps_by_the_first_byte",
           kOfMx,
           {"const int byte = kScalesInWord == 1 ? 0 : step;", "const int byte = step * 0;"}},
    Mutant{"a_byte_of_a_alone", kOfMx, {"return (static_cast<u32>(byte) << 4) | ", "return "}},
    Mutant{"a_byte_of_b_alone",
           kOfMx,
           {"(static_cast<u32>(m / 128) << 27) | (static_cast<u32>(byte) << 29)",
            "(static_cast<u32>(m / 128) << 27)"}},
    Mutant{
        "one_scale_for_all_columns", kOfMx, {"__shfl_sync(0xffffffffu, raw.b[0], i)", "raw.b[0]"}},
    Mutant{"lanes_have_neighbouring_rows",
           kOfScales,
           {"scales + min(lane + 32 * i, place.last)", "scales + min(4 * lane + i, place.last)"}},
    Mutant{"rows_of_scales_side_by_side",
           kOfScales,
           {"group * kScaleGroupBytes + static_cast<u32>(lane) * 16;\n",
            "group * kScaleGroupBytes + static_cast<u32>(lane) * 8;\n"},
           {"store_shared_8(to + i * 4,", "store_shared_8(to + i * 128,"}},
    Mutant{"the_significand_for_the_exponent",
           kOfScales,
           {"return __float_as_uint(word) >> 23;", "return __float_as_uint(word) >> 16;"}},
    Mutant{"scales_of_the_block_before",
           kOfScales,
           {"min(block + kAhead, range.last - 1)", "min(block + kAhead - 1, range.last - 1)"}},
    Mutant{"no_fence_of_the_scales",
           kOfScales,
           {"{ return words.b(i, block); });\n      tma::fence_async_shared();",
            "{ return words.b(i, block); });"}},
    Mutant{"lanes_of_scales_do_not_meet",
           kOfScales,
           {"        __syncwarp();\n        if (lane == 0) mbarrier::arrive",
            "        if (lane == 0) mbarrier::arrive"}},
    Mutant{
        "scales_do_not_wait_for_a_stage",
        kOfScales,
        {"        mbarrier::wait(smem.empty(ring.stage), ring.phase ^ 1);\n        rows[i].store",
         "        rows[i].store"}},
    Mutant{"scales_come_before_the_preceding_kernel_ends",
           kOfScales,
           {"  Ring ring;\n  wait_for_previous_kernel();\n", "  Ring ring;\n"}},
};

// The kernel of which it is a mutant.
inline tests::GemmVariant variant_of(const Mutant& mutant) {
  struct Original {
    std::string_view config, problem;
  };
  constexpr Original kOriginals[] = {
      {kOfItems, "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=1 promote=128"},
      {kOfIntervals, "gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=1 promote=256"},
      {kOfBoxes,
       "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e5m2:1x128:pow2 acc=0 promote=128 "
       "bias=bf16 sentry=squares"},
      {kOfColumns,
       "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 bias=fp32"},
      {kOfClusters, "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128"},
      {kOfWholeK, "gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=none"},
      {kOfScales,
       "gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none"},
      {kOfTwoProducts,
       "gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none"},
      {kOfColumnScales,
       "gemm m=7168 n=7168 k=? a=e5m2:1x128:ue8m0x4 b=e4m3:1x128:ue8m0x4 d=bf16 acc=1 promote=none "
       "sentry=1"},
      {kOfMx, "gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=none"},
      {kOfWideTiles,
       "gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none"},
  };
  const auto* const of = std::ranges::find(kOriginals, mutant.config, &Original::config);
  return {std::get<GemmProblem>(parse_problem(of->problem).value()),
          parse_gemm_config(mutant.config).value()};
}

}  // namespace octile::emulation
