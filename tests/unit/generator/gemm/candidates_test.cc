// The search space of the GEMM: what its constraints guarantee for every candidate.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/axes.h"
#include "generator/gemm/emit.h"
#include "runtime/engine/engine.h"

namespace octile {
namespace {

const DeviceSpec& h200() { return *find_device("h200"); }

GemmProblem problem_of(std::int64_t n, std::int64_t k) {
  GemmProblem problem;
  problem.n = n;
  problem.k = k;
  return problem;
}

TEST(GemmCandidates, EveryConfigurationIsItsText) {
  for (const GemmConfig& c : candidates(problem_of(7168, 7168), kDynamic, h200()).admitted) {
    const auto again = parse_gemm_config(to_text(c));
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_EQ(*again, c) << to_text(c);
  }
}

// A member without a row would be in no text, no kernel's name and no emitted source. The binding
// does not compile once there is another member: give it a row, and a name here.
TEST(GemmAxes, EveryMemberHasARow) {
  [[maybe_unused]] const auto& [block_m, block_n, block_k, stages, consumers, cluster_m, cluster_n,
                                unroll, in_flight, raster, ctas_per_sm, store, pdl_early, tail_n,
                                hold_scales, mma_factors, promote, splits, unit, copies] =
      GemmConfig();
  const std::size_t members = 19 + 2;  // a raster has two
  EXPECT_EQ(gemm_axes().size(), members);
}

// Returns a value of the axis that is not the default.
int other_value(const GemmAxis& axis) {
  const int usual = axis.member.get(GemmConfig());
  for (const GemmAxisWord& word : axis.words) {
    if (word.value != usual) return word.value;
  }
  return usual + 1;
}

TEST(GemmAxes, EachIsInTextNameAndSource) {
  const Problem problem =
      *parse_problem("gemm m=64 n=512 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128");
  const GemmProblem& gemm = std::get<GemmProblem>(problem);  // its kernels have every constant
  const GemmConfig usual;
  for (const GemmAxis& axis : gemm_axes()) {
    GemmConfig other;
    axis.member.set(other, other_value(axis));
    EXPECT_NE(other, usual) << axis.field;
    EXPECT_NE(to_text(other), to_text(usual)) << axis.field;
    EXPECT_NE(kernel_name(gemm, other), kernel_name(gemm, usual)) << axis.field;
    const auto read = parse_gemm_config(to_text(other));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, other) << to_text(other);
    if (axis.constant.empty()) continue;
    const auto line = [&](const GemmConfig& c) {
      const std::string text = explain(gemm, c, h200());
      const std::size_t at = text.find(std::string(axis.constant) + " = ");
      return text.substr(at, text.find('\n', at) - at);
    };
    EXPECT_NE(line(other), line(usual)) << axis.constant;
  }
}

TEST(GemmAxes, LoopsAndPlacesAreWithoutGaps) {
  std::map<int, std::size_t> steps;
  std::set<int> places;
  std::size_t constants = 0;
  for (const GemmAxis& axis : gemm_axes()) {
    if (axis.loop > 0) {
      const auto [it, is_new] = steps.emplace(axis.loop, axis.values.size());
      EXPECT_EQ(it->second, axis.values.size()) << axis.field << ", which is not in step";
    }
    if (axis.constant.empty()) continue;
    ++constants;
    places.insert(axis.place);
  }
  EXPECT_EQ(steps.rbegin()->first, static_cast<int>(steps.size()));
  EXPECT_EQ(places.size(), constants);
  EXPECT_EQ(*places.rbegin(), static_cast<int>(constants));
}

// Hopper's texts, names and records are those of before there were others.
TEST(GemmAxes, UnitAndCopiesAreSaidOnlyIfTheyAreNotHoppers) {
  const GemmProblem problem = problem_of(7168, 7168);
  const GemmConfig usual;
  for (const std::string& text : {to_text(usual), kernel_name(problem, usual)}) {
    EXPECT_EQ(text.find("wgmma"), std::string::npos) << text;
    EXPECT_EQ(text.find("unit"), std::string::npos) << text;
    EXPECT_EQ(text.find("copies"), std::string::npos) << text;
  }
  const GemmConfig other = *parse_gemm_config("unit=mma copies=cp_async");
  EXPECT_EQ(other.unit, MatrixUnit::kMma);
  EXPECT_EQ(other.copies, Copies::kCpAsync);
  EXPECT_EQ(to_text(other), to_text(usual) + " unit=mma copies=cp_async");
  EXPECT_EQ(kernel_name(problem, other), kernel_name(problem, usual) + "_mma_cp_async");
}

// Units sum in different precisions; who copies the operands changes no bit.
TEST(GemmAxes, TheUnitIsNumericsAndTheCopiesAreNot) {
  const GemmConfig usual, mma = *parse_gemm_config("unit=mma");
  EXPECT_EQ(numerics_difference(usual, *parse_gemm_config("copies=cp_async")), std::nullopt);
  EXPECT_EQ(numerics_difference(mma, usual).value_or(""),
            "its numerics are promote=128 splits=1 unit=mma, those of every token count "
            "promote=128 splits=1");
}

TEST(GemmAxes, ATextThatIsNoValueIsRefused) {
  for (const char* text : {"tile=128x128", "tile=128x128x128x128", "tile=x128x128", "raster=8m",
                           "raster=n", "stages=", "store=", "store=tma2", "promote=96", "scales=1",
                           "tail_n=", "cluster=1x", "unknown=1"}) {
    const auto read = parse_gemm_config(text);
    ASSERT_FALSE(read) << text;
    EXPECT_NE(read.error().message.find("raster=N|Nn, ctas=N, store=tma|direct, pdl=early|end"),
              std::string::npos)
        << read.error().message;
  }
}

TEST(GemmCandidates, KernelNamesTellConfigurationsApart) {
  const GemmProblem problem = problem_of(7168, 7168);
  std::set<std::string> names;
  const auto admitted = candidates(problem, kDynamic, h200()).admitted;
  for (const GemmConfig& c : admitted) names.insert(kernel_name(problem, c));
  EXPECT_EQ(names.size(), admitted.size());
}

TEST(GemmCandidates, EveryCandidateIsCountedOnce) {
  const GemmCandidates all = candidates(problem_of(7168, 7168), kDynamic, h200());
  std::size_t counted = all.admitted.size();
  for (const Removal& removal : all.removed) counted += removal.count;
  EXPECT_EQ(counted, all.enumerated);
}

// Returns the tiles in the order in which a configuration with one CTA in flight walks over them.
std::vector<std::pair<std::int64_t, std::int64_t>> walk(const Raster& raster, std::int64_t tiles_m,
                                                        std::int64_t tiles_n) {
  const std::int64_t across = raster.of_columns ? tiles_n : tiles_m;
  const std::int64_t along = raster.of_columns ? tiles_m : tiles_n;
  std::vector<std::pair<std::int64_t, std::int64_t>> tiles;
  for (std::int64_t first = 0; first < across; first += raster.band) {
    for (std::int64_t a = 0; a < along; ++a) {
      for (std::int64_t x = first; x < std::min(first + raster.band, across); ++x)
        tiles.push_back(raster.of_columns ? std::pair(a, x) : std::pair(x, a));
    }
  }
  return tiles;
}

TEST(GemmCandidates, OtherRastersAreOtherWalks) {
  for (const char* tile : {"tile=192x128x128 stages=4 wg=3 raster=16n", "tile=128x128x128",
                           "tile=128x128x128 cluster=2x1", "tile=64x64x128 wg=1"}) {
    const GemmConfig config = *parse_gemm_config(tile);
    for (const std::int64_t n : {8, 128, 256, 2112, 7168, 24576}) {
      for (const std::int64_t m : {1, 64, 128, 300, 2048, 8192}) {
        const std::int64_t tiles_m = ceil_div(m, std::int64_t{config.block_m} * config.cluster_m);
        const std::int64_t tiles_n = ceil_div(n, std::int64_t{config.block_n});
        const auto others = other_rasters(config, problem_of(n, 7168), m);
        std::set<std::vector<std::pair<std::int64_t, std::int64_t>>> walks{
            walk(config.raster, tiles_m, tiles_n)};
        for (const Raster& raster : others) walks.insert(walk(raster, tiles_m, tiles_n));
        EXPECT_EQ(walks.size(), 1 + others.size()) << tile << ", " << m << " x " << n;
        EXPECT_EQ(others.empty(), tiles_m == 1 || tiles_n == 1) << tile << ", " << m << " x " << n;
      }
    }
  }
}

TEST(GemmCandidates, TallTilesWalkColumnsSharedOutEvenly) {
  const GemmConfig tall = *parse_gemm_config("tile=192x128x128 stages=4 wg=3");
  EXPECT_EQ(usual_raster(tall, 2112), (Raster{17, true}));
  EXPECT_EQ(usual_raster(tall, 7168), (Raster{14, true}));
  EXPECT_EQ(usual_raster(tall, 24576), (Raster{16, true}));
  EXPECT_EQ(usual_raster(tall, 64), (Raster{1, true}));
  EXPECT_EQ(usual_raster(GemmConfig{}, 7168), Raster{});
  for (const GemmConfig& c : candidates(problem_of(7168, 7168), kDynamic, h200()).admitted)
    ASSERT_EQ(c.raster, usual_raster(c, 7168)) << to_text(c);
}

GemmProblem weight_gradient(std::string_view a, std::string_view b) {
  return std::get<GemmProblem>(
      *parse_problem(fmt::format("gemm m=4096 n=4096 k=? a=e4m3:1x128{} b=e4m3:1x128{} d=fp32 "
                                 "acc=1 promote=128",
                                 a, b)));
}

TEST(GemmCandidates, TheTensorCoreMultipliesScalesThatArePowersOfTwo) {
  const auto count = [](const GemmProblem& p) {
    return std::ranges::count_if(candidates(p, kDynamic, h200()).admitted,
                                 &GemmConfig::mma_factors);
  };
  EXPECT_GT(count(weight_gradient(":pow2", ":pow2")), 0);
  EXPECT_EQ(count(weight_gradient(":pow2", "")), 0);
  EXPECT_EQ(count(weight_gradient("", ":pow2")), 0);
  EXPECT_EQ(count(weight_gradient(":ue8m0x4", ":ue8m0x4")), 0);
  GemmConfig config = *parse_gemm_config("tile=128x128x128 stages=4 wg=2");
  const auto source = [&](const GemmProblem& p) {
    return emit(p, config, h200(), embedded_templates())->source;
  };
  const GemmProblem powers = weight_gradient(":pow2", ":pow2"), any = weight_gradient("", "");
  EXPECT_EQ(source(powers), source(any));
  config.mma_factors = true;
  EXPECT_NE(source(powers).find("OCTILE_SCALE gemm::scale::OuterRowB"), std::string::npos);
  EXPECT_NE(refused_by(config, any, kDynamic, h200()), nullptr);
}

TEST(GemmCandidates, OneConsumerMultipliesScalesOfABatchForFewRowsOnly) {
  const GemmProblem batch = std::get<GemmProblem>(
      parse_problem("gemm m=? n=4096 k=4096 a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=0 "
                    "promote=128 batch=8")
          .value());
  const auto candidate = [&](const char* tile) {
    return *parse_gemm_config(fmt::format("tile={} factors=mma", tile));
  };
  EXPECT_EQ(refused_by(candidate("64x80x128 stages=4 wg=1"), batch, kDynamic, h200()), nullptr);
  EXPECT_EQ(refused_by(candidate("128x80x128 stages=4 wg=2"), batch, kDynamic, h200()), nullptr);
  const GemmConstraint* refuses =
      refused_by(candidate("128x80x128 stages=4 wg=1"), batch, kDynamic, h200());
  ASSERT_NE(refuses, nullptr);
  EXPECT_EQ(refuses->name, "factors_are_powers");
}

TEST(GemmCandidates, AnInvariantProblemIsNeverSplit) {
  GemmProblem problem = problem_of(2112, 7168);
  problem.invariant = true;
  for (const GemmConfig& c : candidates(problem, kDynamic, h200()).admitted) {
    ASSERT_EQ(c.splits, 1) << to_text(c);
  }
  EXPECT_GT(default_config(problem_of(2112, 7168), 64, h200()).splits, 1)
      << "the test shows nothing";
  for (std::int64_t m = 1; m <= 16384; m *= 2) {
    EXPECT_EQ(default_config(problem, m, h200()).splits, 1) << m;
  }
}

TEST(GemmCandidates, EverySplitHasAKBlockAndColumns) {
  for (const std::int64_t k : {0, 16, 128, 144, 384, 1024}) {
    for (const GemmConfig& c : candidates(problem_of(576, k), kDynamic, h200()).admitted) {
      ASSERT_TRUE(c.splits == 1 || c.splits * 128 < k + 128) << to_text(c) << " at k = " << k;
      ASSERT_LE(c.splits, c.block_n / 8) << to_text(c);
    }
  }
}

TEST(GemmCandidates, TwoCtasFitAnSm) {
  int seen = 0;
  for (const GemmConfig& c : candidates(problem_of(7168, 7168), kDynamic, h200()).admitted) {
    const GemmResources r = resources_of(problem_of(7168, 7168), c, h200());
    ASSERT_LE(c.ctas_per_sm * (r.smem.total_bytes + 1024), h200().smem_per_sm_bytes) << to_text(c);
    const int registers =
        128 * (c.consumer_warpgroups * r.consumer_registers + r.producer_registers);
    ASSERT_EQ(registers, r.registers) << to_text(c);
    ASSERT_LE(c.ctas_per_sm * registers, h200().registers_per_sm) << to_text(c);
    ASSERT_LE(c.ctas_per_sm * r.threads, h200().threads_per_sm) << to_text(c);
    seen += c.ctas_per_sm == 2;
  }
  EXPECT_GT(seen, 0);
}

// An SM of half the registers, threads or shared memory holds one of two CTAs; without clusters no
// CTAs share or split.
TEST(GemmCandidates, TheDeviceBoundsThem) {
  const auto pairs_and_clusters = [](const DeviceSpec& device) {
    std::size_t pairs = 0, clusters = 0;
    for (const GemmConfig& c : candidates(problem_of(7168, 7168), 64, device).admitted) {
      pairs += c.ctas_per_sm == 2 ? 1U : 0U;
      clusters += cluster_size(c) > 1 ? 1U : 0U;
    }
    return std::pair(pairs, clusters);
  };
  const std::size_t pairs = pairs_and_clusters(h200()).first;
  EXPECT_GT(pairs_and_clusters(h200()).second, 0U);
  DeviceSpec device = h200();
  device.registers_per_sm /= 2;  // of which smaller tiles take their share
  EXPECT_GT(pairs_and_clusters(device).first, 0U);
  EXPECT_LT(pairs_and_clusters(device).first, pairs);
  device.registers_per_sm /= 2;
  EXPECT_EQ(pairs_and_clusters(device).first, 0U);
  device = h200();
  device.threads_per_sm = 384;
  EXPECT_EQ(pairs_and_clusters(device).first, 0U);
  device = h200();
  device.has_multicast = false;  // splits of K remain
  for (const GemmConfig& c : candidates(problem_of(7168, 7168), 64, device).admitted)
    ASSERT_EQ(c.cluster_m * c.cluster_n, 1) << to_text(c);
  EXPECT_GT(pairs_and_clusters(device).second, 0U);
  device.has_clusters = false;
  EXPECT_EQ(pairs_and_clusters(device).second, 0U);
  for (const auto take :
       {+[](DeviceSpec& d) { d.units = {}; }, +[](DeviceSpec& d) { d.has_tma = false; },
        +[](DeviceSpec& d) { d.has_setmaxnreg = false; },
        +[](DeviceSpec& d) { d.max_smem_per_block_bytes = kMostStaticSmem / 8; }}) {
    device = h200();
    take(device);
    EXPECT_TRUE(candidates(problem_of(7168, 7168), 64, device).admitted.empty());
  }
}

std::set<MatrixUnit> units_on(const DeviceSpec& device) {
  std::set<MatrixUnit> units;
  for (const GemmConfig& c : candidates(problem_of(7168, 7168), 64, device).admitted)
    units.insert(c.unit);
  return units;
}

// Hopper emulates mma.sync, so only a stated configuration has it there. A device without WGMMA
// takes all of its units that are proven.
TEST(GemmCandidates, UnitsAreThoseOfTheDevice) {
  const auto units_of = [](const char* name) { return units_on(*find_device(name)); };
  using enum MatrixUnit;
  EXPECT_EQ(units_of("h200"), std::set{kWgmma});
  EXPECT_EQ(units_of("rtx5090"), (std::set{kMma, kMmaScaled}));
  EXPECT_EQ(units_of("b200"), std::set{kMma});
  EXPECT_EQ(units_of("l40s"), std::set{kMma});
  const auto refusal = [](const char* text, const char* device) {
    const GemmConstraint* rule = refused_by(*parse_gemm_config(text), problem_of(7168, 7168),
                                            kDynamic, *find_device(device));
    return std::string(rule == nullptr ? "" : rule->name);
  };
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 unit=mma", "h200"), "");
  EXPECT_EQ(refusal("tile=64x64x128 stages=3 wg=1 unit=mma_scaled", "rtx5090"), "");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 unit=mma_scaled", "h200"), "device_has_instructions");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 unit=tcgen05", "b200"), "");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 unit=tcgen05", "rtx5090"), "device_has_instructions");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1", "rtx5090"), "device_has_instructions");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 copies=cp_async", "h200"), "copies_suit_unit");
}

// A unit is chosen once its test on the card has passed. Until then a stated configuration has it.
TEST(GemmCandidates, AnUnprovenUnitWaitsForItsTest) {
  DeviceSpec device = *find_device("b200");
  EXPECT_TRUE(device.is_unused(MatrixUnit::kTcgen05));
  EXPECT_EQ(default_config(problem_of(7168, 7168), 4096, device).unit, MatrixUnit::kMma);
  device.unused_units.clear();
  EXPECT_EQ(units_on(device), (std::set{MatrixUnit::kMma, MatrixUnit::kTcgen05}));
  for (const std::int64_t tokens : {512, 4096, 16384}) {
    const GemmConfig config = default_config(problem_of(7168, 7168), tokens, device);
    EXPECT_EQ(config.unit, MatrixUnit::kTcgen05) << tokens << ": " << to_text(config);
  }
}

TEST(GemmCandidates, SumsFitTensorMemory) {
  const auto refusal = [](const char* text) {
    const std::string config = std::string(text) + " stages=3 unit=tcgen05";
    const GemmConstraint* rule = refused_by(*parse_gemm_config(config), problem_of(7168, 7168),
                                            kDynamic, *find_device("b200"));
    return std::string(rule == nullptr ? "" : rule->name);
  };
  EXPECT_EQ(refusal("tile=256x128x128 wg=2 inflight=2"), "");
  EXPECT_EQ(refusal("tile=192x144x128 wg=3 inflight=2"), "tensor_memory_holds_sums");
  EXPECT_EQ(refusal("tile=192x144x128 wg=3 inflight=1"), "");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 ctas=2"), "tensor_memory_holds_sums");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 pdl=early"), "tensor_memory_holds_sums");
  EXPECT_EQ(refusal("tile=256x96x128 wg=1"), "tensor_memory_holds_sums");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 inflight=4"), "");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 inflight=5"), "overlap_fits_pass");
  EXPECT_EQ(refusal("tile=128x256x128 wg=2 inflight=2"), "");
  EXPECT_EQ(refusal("tile=128x32x128 wg=2 store=direct splits=2"), "");
  EXPECT_EQ(refusal("tile=128x32x128 wg=2 store=direct splits=3"), "splits_are_allowed");
  EXPECT_EQ(refusal("tile=128x256x128 wg=2 inflight=3"), "tensor_memory_holds_sums");
  EXPECT_EQ(refusal("tile=64x64x128 wg=1 unroll=2"), "warps_have_plain_loops");
}

// A warp's loop over K-blocks has neither of WGMMA's schedules, and its sums are in few registers.
// Warps that have no rows of their own in a tile of 16 or 32 take columns.
TEST(GemmCandidates, WarpsShareTheColumnsOfShortTiles) {
  const auto across = [](const char* text, const char* d = "bf16") {
    const auto problem = parse_problem(fmt::format(
        "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d={} acc=0 promote=128", d));
    return warps_across(std::get<GemmProblem>(*problem), *parse_gemm_config(text));
  };
  EXPECT_EQ(across("tile=16x32x128 wg=1 unit=mma"), 4);
  EXPECT_EQ(across("tile=16x96x128 wg=1 unit=mma_scaled"), 4);
  EXPECT_EQ(across("tile=16x48x128 wg=1 unit=mma"), 2) << "24 columns each";
  EXPECT_EQ(across("tile=16x16x128 wg=1 unit=mma"), 2);
  EXPECT_EQ(across("tile=32x48x128 wg=1 unit=mma"), 2);
  EXPECT_EQ(across("tile=64x64x128 wg=1 unit=mma"), 1);
  EXPECT_EQ(across("tile=16x32x128 wg=1"), 1) << "WGMMA multiplies by warpgroups";
  EXPECT_EQ(across("tile=16x128x128 wg=1 unit=mma", "e4m3:1x128"), 1) << "a scale block of D";
  // Each rank of a split K stores a group of 8 columns of each warp.
  EXPECT_EQ(across("tile=16x64x128 wg=1 splits=2 unit=mma"), 4);
  EXPECT_EQ(across("tile=16x64x128 wg=1 splits=4 unit=mma"), 2);
  EXPECT_EQ(across("tile=16x64x128 wg=1 splits=8 unit=mma"), 1);
}

TEST(GemmCandidates, WarpsThatMultiplyHaveNoneOfWgmmasAxes) {
  const DeviceSpec& device = *find_device("rtx5090");
  const GemmConfig usual;
  const auto admitted = candidates(problem_of(7168, 7168), 64, device).admitted;
  ASSERT_GT(admitted.size(), 100U);
  for (const GemmConfig& c : admitted) {
    for (const GemmAxis& axis : gemm_axes()) {
      const int expected = axis.of_wgmma ? axis.member.get(usual) : axis.member.get(c);
      ASSERT_EQ(axis.member.get(c), expected) << to_text(c);
    }
    ASSERT_LE(std::max(c.block_m, c.block_n), 128) << to_text(c);
  }
  for (const char* text : {"unroll=2", "inflight=2 unroll=2", "cluster=2x1"}) {
    const GemmConfig c =
        *parse_gemm_config(fmt::format("tile=128x64x128 unit=mma stages=4 {}", text));
    const auto reason = rejection_reason(c, problem_of(7168, 7168), kDynamic, h200());
    ASSERT_TRUE(reason) << text;
    EXPECT_TRUE(reason->starts_with("warps_have_plain_loops")) << *reason;
  }
}

// Every problem that the matrix takes on a machine has a configuration there.
TEST(GemmCandidates, EverySupportedOutputHasAConfiguration) {
  for (const char* name : {"rtx5090", "b200", "h200"}) {
    const DeviceSpec& device = *find_device(name);
    for (const char* text :
         {"gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=32",
          "gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=fp32 acc=1 promote=512 sentry=squares",
          "gemm m=? n=7168 k=7168 a=e4m3:tensor b=e4m3:tensor d=bf16 acc=1 promote=none bias=fp32",
          "gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=32",
          "gemm m=7168 n=7168 k=? a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=1 promote=32 bias=fp32 "
          "sentry=squares",
          "gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=64 "
          "group=contiguous groups=1024",
          "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=fp16 acc=0 promote=32 "
          "group=masked groups=1024",
          "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=32 batch=8"}) {
      const auto problem = std::get<GemmProblem>(parse_problem(text).value());
      if (!check_supported(problem, device)) continue;
      EXPECT_GT(candidates(problem, 64, device).admitted.size(), 3U) << name << ": " << text;
    }
  }
}

// The estimates of cards without races are rooflines, in which the faster unit wins where tensor
// cores bound and neither where memory does.
TEST(GemmCandidates, DefaultsOfOtherCardsAreRooflines) {
  const DeviceSpec& device = *find_device("rtx5090");
  const GemmProblem problem = problem_of(7168, 7168);
  const GemmConfig large = default_config(problem, 8192, device);
  EXPECT_EQ(large.unit, MatrixUnit::kMmaScaled);
  EXPECT_GE(large.block_m * large.block_n, 128 * 64) << to_text(large);
  GemmConfig plain = large;
  plain.unit = MatrixUnit::kMma;
  EXPECT_GT(estimate(plain, problem, 8192, device).compute_us,
            1.5 * estimate(large, problem, 8192, device).compute_us);
  const double bound = flops(problem, 8192) / (device.fp8_tflops * 1e6);
  EXPECT_GT(estimate_us(large, problem, 8192, device), bound);
  EXPECT_LT(estimate_us(large, problem, 8192, device), 2.5 * bound);
  const double bytes = 7168.0 * 7168;
  const double few = estimate_us(default_config(problem, 1, device), problem, 1, device);
  EXPECT_GT(few, bytes / (device.dram_tbps * 1e6));
  EXPECT_LT(few, 1.3 * bytes / (device.dram_tbps * 1e6) + 5);
  EXPECT_NE(default_reason(problem, 1, device).find("octile tune"), std::string::npos);
  EXPECT_EQ(default_reason(problem, 1, h200()), "the cost model");
}

// Two consumers of 128 rows share a product's columns, in whole loads of 16 and blocks of FP8 D.
TEST(GemmCandidates, ConsumersShareTheColumnsOf128Rows) {
  const auto columns = [](const char* text, const char* d = "bf16") {
    const auto problem = parse_problem(fmt::format(
        "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d={} acc=0 promote=128", d));
    return columns_of_consumer(std::get<GemmProblem>(*problem), *parse_gemm_config(text));
  };
  EXPECT_EQ(columns("tile=128x256x128 wg=2 unit=tcgen05"), 128);
  EXPECT_EQ(columns("tile=128x32x128 wg=2 unit=tcgen05"), 16);
  EXPECT_EQ(columns("tile=128x48x128 wg=2 unit=tcgen05"), 48);
  EXPECT_EQ(columns("tile=256x128x128 wg=2 unit=tcgen05"), 128);
  EXPECT_EQ(columns("tile=128x128x128 wg=1 unit=tcgen05"), 128);
  EXPECT_EQ(columns("tile=128x256x128 wg=2"), 256);
  EXPECT_EQ(columns("tile=128x256x128 wg=2 unit=tcgen05", "e4m3:1x128"), 128);
  EXPECT_EQ(columns("tile=128x128x128 wg=2 unit=tcgen05", "e4m3:1x128"), 128);
}

// A product by tcgen05 has 128 rows at twice the rate of 64.
TEST(GemmCandidates, ProductsOf128RowsHaveTheFullRate) {
  const DeviceSpec device = find_device("b200")->with_all_units();
  const GemmProblem problem = problem_of(7168, 7168);
  const auto compute_us = [&](const char* text) {
    return estimate(*parse_gemm_config(text), problem, 16384, device).compute_us;
  };
  const double of_64 = compute_us("tile=128x112x128 stages=3 wg=2 inflight=2 unit=tcgen05");
  const double of_128 = compute_us("tile=256x128x128 stages=3 wg=2 inflight=2 unit=tcgen05");
  const double bound = flops(problem, 16384) / (device.fp8_tflops * 1e6);
  EXPECT_GT(of_64, 2 * bound);
  EXPECT_GT(of_128, bound);
  EXPECT_LT(of_128, 0.8 * of_64);
  EXPECT_EQ(rows_of_consumer(problem, default_config(problem, 16384, device)), 128);
}

// The products of a tile go on while the one before is stored, for as long as there are slots.
TEST(GemmCandidates, SlotsHideTheStoreOfATile) {
  const DeviceSpec device = find_device("b200")->with_all_units();
  const auto problem = std::get<GemmProblem>(
      *parse_problem("gemm m=? n=7168 k=1024 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=none"));
  const auto compute_us = [&](const char* text) {
    return estimate(*parse_gemm_config(text), problem, 16384, device).compute_us;
  };
  EXPECT_LT(
      compute_us("tile=128x128x128 stages=3 wg=2 inflight=2 promote=none unit=tcgen05"),
      0.9 * compute_us("tile=128x128x128 stages=3 wg=2 inflight=1 promote=none unit=tcgen05"));
}

// setmaxnreg gives consumers what the producer leaves of an SM's registers, 248 at most.
TEST(GemmConfigs, RolesShareTheRegistersOfAnSm) {
  const auto consumer_registers = [](int consumers, int ctas, const DeviceSpec& device) {
    GemmConfig c;
    c.block_m = 64 * consumers;
    c.consumer_warpgroups = consumers;
    c.ctas_per_sm = ctas;
    return resources_of(problem_of(7168, 7168), c, device).consumer_registers;
  };
  EXPECT_EQ(consumer_registers(1, 1, h200()), 248);
  EXPECT_EQ(consumer_registers(1, 2, h200()), 216);
  EXPECT_EQ(consumer_registers(2, 1, h200()), 232);
  EXPECT_EQ(consumer_registers(3, 1, h200()), 160);
  DeviceSpec half = h200();
  half.registers_per_sm /= 2;
  EXPECT_EQ(consumer_registers(1, 1, half), 216);
  EXPECT_EQ(consumer_registers(2, 1, half), 104);
}

TEST(GemmCandidates, ThreeConsumersArePickedWithoutCluster) {
  const GemmConfig pick = default_config(problem_of(7168, 2048), 8192, h200());
  EXPECT_EQ(pick.consumer_warpgroups, 3);
  EXPECT_EQ(cluster_size(pick), 1);
  EXPECT_EQ(pick.unroll, 1);
}

// A stage holds a scale of B for each run of columns that lies in one block of 128 wherever the
// tile begins. Space for scales comes in units of 16 bytes for each stage.
TEST(GemmConfigs, AStageHoldsAScaleForEverySegmentOfColumns) {
  const auto stage_bytes = [](int block_n) {
    GemmConfig c;
    c.block_n = block_n;
    c.stages = 3;
    const GemmSmemLayout s = resources_of(problem_of(7168, 7168), c, h200()).smem;
    return (s.barrier_offset - s.scale_b_offset) / 3;
  };
  EXPECT_EQ(stage_bytes(64), 16);   // one
  EXPECT_EQ(stage_bytes(128), 16);  // one
  EXPECT_EQ(stage_bytes(256), 16);  // two of 128
  EXPECT_EQ(stage_bytes(96), 16);   // three of 32
  EXPECT_EQ(stage_bytes(160), 32);  // five of 32
  EXPECT_EQ(stage_bytes(112), 32);  // seven of 16
  EXPECT_EQ(stage_bytes(144), 48);  // nine of 16
}

// The grid must not be much smaller than the result of cuOccupancyMaxActiveClusters on an H200.
TEST(GemmConfigs, ResidentClustersAreThoseOfTheGpu) {
  GemmConfig c;
  EXPECT_EQ(resident_clusters(c, 132), 132);
  c.cluster_n = 2;
  EXPECT_EQ(resident_clusters(c, 132), 66);
  c.cluster_n = 1;
  c.splits = 3;
  EXPECT_EQ(resident_clusters(c, 132), 39) << "a fortieth would wait for another's end";
  c.splits = 4;
  EXPECT_EQ(resident_clusters(c, 132), 30);
  c.splits = 8;
  EXPECT_EQ(resident_clusters(c, 132), 15);
  c.ctas_per_sm = 2;
  EXPECT_EQ(resident_clusters(c, 132), 30);
  EXPECT_EQ(resident_clusters(c, 1), 2) << "never none";
}

TEST(GemmConfigs, StagingHoldsTheTileOrTheGatheredSums) {
  GemmConfig c;
  c.block_m = 64;
  c.block_n = 96;
  c.consumer_warpgroups = 1;
  EXPECT_EQ(resources_of(problem_of(7168, 7168), c, h200()).smem.d_bytes, 64 * 96 * 2);
  c.store = EpilogueStore::kDirect;
  EXPECT_EQ(resources_of(problem_of(7168, 7168), c, h200()).smem.d_bytes, 0);
  c.splits = 8;  // 12 groups of 8 columns: shares of 1 or 2, space for 2
  EXPECT_EQ(resources_of(problem_of(7168, 7168), c, h200()).smem.d_bytes, 8 * 2 * 128 * 16);
  c.splits = 4;
  EXPECT_EQ(resources_of(problem_of(7168, 7168), c, h200()).smem.d_bytes, 64 * 96 * 4);
}

}  // namespace
}  // namespace octile
