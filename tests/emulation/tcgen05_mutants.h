// Mistakes that a kernel by tcgen05 could have. Each is an edit of an emitted text, and the
// emulation has to find each under some schedule.
#pragma once

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
  std::string_view config;  // one of the four below
  Edit edit;
  Edit also = {};  // empty: one edit is all
};

// Two consumers of two strips, two slots; sums of two K-blocks; FP8 D in boxes of 64 rows; and a
// cluster.
constexpr std::string_view kOfItems =
    "tile=256x96x128 stages=3 wg=2 inflight=2 store=direct unit=tcgen05";
constexpr std::string_view kOfIntervals =
    "tile=128x64x128 stages=3 wg=1 store=direct promote=256 unit=tcgen05";
constexpr std::string_view kOfBoxes = "tile=128x128x128 stages=3 wg=1 inflight=2 unit=tcgen05";
constexpr std::string_view kOfClusters =
    "tile=128x96x128 stages=3 wg=1 inflight=1 cluster=2x1 unit=tcgen05";

constexpr std::array kMutants{
    Mutant{"swizzle_of_32_bytes", kOfItems, {"(2u << 29)", "(1u << 29)"}},
    Mutant{"swizzle_of_64_bytes", kOfItems, {"(2u << 29)", "(4u << 29)"}},
    Mutant{"the_word_of_wgmma", kOfItems, {"(1024 >> 4) | (1u << 14) | (2u << 29)", "0x40000040u"}},
    Mutant{"stride_of_4_rows", kOfItems, {"(1024 >> 4) | (1u << 14)", "(512 >> 4) | (1u << 14)"}},
    Mutant{"no_version", kOfItems, {"(1u << 14) | (2u", "(2u"}},
    Mutant{"a_base_offset", kOfItems, {"(2u << 29) };", "(2u << 29) | (1u << 17) };"}},
    Mutant{"n_in_sixteens", kOfItems, {"(n / 8) << 17", "(n / 16) << 17"}},
    Mutant{"m_in_eights", kOfItems, {"(m / 16) << 24", "(m / 8) << 24"}},
    Mutant{"a_is_e5m2", kOfItems, {"(static_cast<u32>(kA) << 7)", "(1u << 7)"}},
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
    Mutant{"a_of_the_first_consumer",
           kOfItems,
           {"static_cast<u32>(index * kRowsPerConsumer * 128)", "0"}},
    Mutant{"consumers_share_places",
           kOfItems,
           {"static_cast<u32>(index * kPlaces * kPlaceColumns)", "0"}},
    Mutant{"slots_share_a_place",
           kOfItems,
           {"(kIntervalBlocks == 1 ? slot : place) * kPlaceColumns", "0 * kPlaceColumns"}},
    Mutant{"always_adds", kOfItems, {"step > 0 ? 1 : goes_on", "1"}},
    Mutant{"never_adds", kOfItems, {"step > 0 ? 1 : goes_on", "0"}},
    Mutant{"reads_the_first_strip",
           kOfItems,
           {"from + kColumn + (static_cast<u32>(strip * kStripStep) << 16)", "from + kColumn"}},
    Mutant{"reads_the_lanes_of_warp_0",
           kOfItems,
           {"(static_cast<u32>(warp * 32) << 16)) {}", "0) {}"}},
    Mutant{"no_wait_for_loads", kOfItems, {"tcgen05::wait_loads(partial[strip]);", ""}},
    Mutant{
        "no_wait_for_products",
        kOfItems,
        {"mbarrier::wait(sums::ready(self.smem, self.index, ring.slot), ring.ready_phase);", ""}},
    Mutant{"no_fence_behind_the_wait",
           kOfItems,
           {"ring.ready_phase);\n  tcgen05::fence_after();", "ring.ready_phase);"}},
    Mutant{"no_fence_behind_the_loads",
           kOfItems,
           {"tcgen05::fence_before();\n  named_barrier", "named_barrier"}},
    Mutant{"no_fence_before_the_issue",
           kOfItems,
           {"ring.phase);\n    tcgen05::fence_after();", "ring.phase);"}},
    Mutant{"warps_do_not_meet",
           kOfItems,
           {"named_barrier(self.index + 1, 128);\n  ring.advance_slot();", "ring.advance_slot();"}},
    Mutant{
        "no_commit", kOfItems, {"tcgen05::commit(sums::ready(self.smem, self.index, slot));", ""}},
    Mutant{"commit_before_the_products",
           kOfItems,
           {"      multiply(self);\n", ""},
           {"tcgen05::commit(sums::ready(self.smem, self.index, slot));",
            "tcgen05::commit(sums::ready(self.smem, self.index, slot)); multiply(self);"}},
    Mutant{"phase_never_flips", kOfItems, {"ready_phase ^= 1;", ""}},
    Mutant{"slots_wrap_late",
           kOfItems,
           {"if (++slot == kSlots) slot = 0;", "if (++slot > kSlots) slot = 0;"}},
    Mutant{
        "stage_is_released_before_its_products",
        kOfItems,
        {"      wait_for_sums(self, ring);\n      read_columns",
         "      release_stage(self, stage, true); wait_for_sums(self, ring);\n      read_columns"},
        {"if (part == kParts - 1) release_stage(self, stage, has_come(last));", ""}},
    Mutant{"half_of_the_columns",
           kOfItems,
           {"tcgen05::allocate(smem.base + kAddressOffset, kTensorColumns)",
            "tcgen05::allocate(smem.base + kAddressOffset, kTensorColumns / 2)"}},
    Mutant{"memory_is_kept",
           kOfItems,
           {"tcgen05::release(address(smem), kTensorColumns);", "(void)0;"}},
    Mutant{"memory_is_given_back_before_all_have_read",
           kOfItems,
           {"  tcgen05::fence_before();\n  __syncthreads();\n  tcgen05::fence_after();\n", ""},
           {"named_barrier(self.index + 1, 128);\n  ring.advance_slot();", "ring.advance_slot();"}},
    Mutant{"intervals_share_a_place", kOfIntervals, {"place ^= 1;", ""}},
    Mutant{"the_other_place_is_read", kOfIntervals, {"place = kPlaces - 1 - place;", ""}},
    Mutant{"an_interval_begins_anew",
           kOfIntervals,
           {"kIntervalBlocks != 1 && of_interval > 0 ? 1 : 0", "0"}},
    Mutant{
        "the_last_interval_is_lost",
        kOfIntervals,
        {"++of_interval == kIntervalBlocks || k_blocks == 1", "++of_interval == kIntervalBlocks"}},
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
    Mutant{"memory_is_given_back_without_a_meeting",
           kOfItems,
           {"  tcgen05::fence_before();\n  __syncthreads();\n  tcgen05::fence_after();\n",
            "  tcgen05::fence_before();\n  tcgen05::fence_after();\n"}},
    Mutant{"two_threads_issue_and_one_commits",
           kOfItems,
           {"    if (elect_one()) {\n      multiply(self);\n",
            "    if (self.lane == 0) multiply(self);\n    __syncwarp();\n"
            "    if (self.lane == 1) {\n      multiply(self);\n"},
           {"    for (int step = 0; step < kItemSteps; ++step) {",
            "    for (int step = 0; step < kItemSteps; ++step) {\n"
            "      if (step / 2 != self.lane) continue;"}},
    // The rules of PTX ISA alone forbid these two: sums are right under every schedule.
    Mutant{"one_warp_waits_for_products",
           kOfItems,
           {"  mbarrier::wait(sums::ready(self.smem, self.index, ring.slot), ring.ready_phase);",
            "  if (self.warp == 0)\n"
            "    mbarrier::wait(sums::ready(self.smem, self.index, ring.slot), ring.ready_phase);\n"
            "  named_barrier(self.index + 1, 128);"}},
    Mutant{"the_address_comes_by_the_cluster_barrier",
           kOfClusters,
           {"  if constexpr (kShareSize > 1) __syncthreads();\n", ""}},
};

// The kernel of which it is a mutant.
inline tests::GemmVariant variant_of(const Mutant& mutant) {
  constexpr std::string_view kItems =
      "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=1 promote=128";
  constexpr std::string_view kIntervals =
      "gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=1 promote=256";
  constexpr std::string_view kBoxes =
      "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e5m2:1x128:pow2 acc=0 promote=128 "
      "bias=bf16 sentry=squares";
  constexpr std::string_view kClusters =
      "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  const std::string_view problem = mutant.config == kOfItems       ? kItems
                                   : mutant.config == kOfIntervals ? kIntervals
                                   : mutant.config == kOfBoxes     ? kBoxes
                                                                   : kClusters;
  return {std::get<GemmProblem>(parse_problem(problem).value()),
          parse_gemm_config(mutant.config).value()};
}

}  // namespace octile::emulation
