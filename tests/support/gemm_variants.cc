#include "tests/support/gemm_variants.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "generator/families.h"
#include "tests/support/coverage.h"

namespace octile::tests {
namespace {

constexpr int kAxes = 12;
using Values = std::array<int, kAxes>;
using Pair = std::tuple<int, int, int, int>;  // axis, value, axis, value

// Returns who reads or multiplies scales.
int scales_of(const GemmConfig& c) { return c.mma_factors ? 2 : c.hold_scales ? 1 : 0; }

Values values_of(const GemmConfig& c) {
  return {c.block_m,
          c.block_n,
          c.consumer_warpgroups,
          c.cluster_m,
          c.cluster_n,
          c.unroll,
          static_cast<int>(c.store),
          c.in_flight,
          c.ctas_per_sm,
          c.splits,
          c.tail_n,
          scales_of(c)};
}

// Pairs of axis and value, each pair of axes in one order.
template <std::size_t kCount>
std::vector<Pair> pairs_of_values(const std::array<int, kCount>& v) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < kCount; ++i) {
    for (std::size_t j = i + 1; j < kCount; ++j) {
      pairs.emplace_back(static_cast<int>(i), v[i], static_cast<int>(j), v[j]);
    }
  }
  return pairs;
}

std::vector<Pair> pairs_of(const GemmConfig& c) { return pairs_of_values(values_of(c)); }

std::vector<Pair> pairs_of_variant(const GemmVariant& v) {
  const GemmProblem& p = v.problem;
  const GemmConfig& c = v.config;
  return pairs_of_values(std::array{
      static_cast<int>(p.b.granularity),
      16 * static_cast<int>(p.d.scale) + 2 * static_cast<int>(p.d.dtype) + (p.accumulate ? 1 : 0),
      p.bias ? static_cast<int>(*p.bias) : 0, static_cast<int>(p.sentry), p.promote,
      2 * static_cast<int>(p.a.dtype) + static_cast<int>(p.b.dtype),
      8 * static_cast<int>(p.a.scale) + static_cast<int>(p.b.scale), c.block_m,
      c.consumer_warpgroups, 2 * c.cluster_m + c.cluster_n, c.splits > 1 ? 2 : 1,
      static_cast<int>(c.store), 4 * c.unroll + c.in_flight, scales_of(c)});
}

// Returns the problems of one scaling, type of D and interval: every bias, sentry and pair of
// types.
std::vector<GemmProblem> with_options(const GemmProblem& problem) {
  std::vector<GemmProblem> all;
  for (const auto bias :
       {std::optional<DType>(), std::optional(DType::kBF16), std::optional(DType::kFP32)}) {
    for (const Sentry sentry : {Sentry::kNone, Sentry::kWord, Sentry::kSquares}) {
      for (const auto& [a, b] :
           {std::pair(DType::kE4M3, DType::kE4M3), std::pair(DType::kE4M3, DType::kE5M2),
            std::pair(DType::kE5M2, DType::kE4M3)}) {
        all.push_back(problem);
        all.back().bias = bias;
        all.back().sentry = sentry;
        all.back().a.dtype = a;
        all.back().b.dtype = b;
        if (scales_at_end(scheme_of(problem)) || scheme_of(problem) == Scheme::kMx) continue;
        if (has_power_scales(problem)) continue;
        // Some with the exponents of four K-blocks in a word.
        if (has_sentry(all.back()) || bias) all.back().a.scale = ScaleFormat::kUe8m0x4;
        if (has_sentry(all.back()) && (scheme_of(problem) == Scheme::kRowB))
          all.back().b.scale = ScaleFormat::kUe8m0x4;
      }
    }
  }
  return all;
}

}  // namespace

GemmProblem splittable_gemm_problem() {
  GemmProblem problem;
  problem.n = 7168;
  problem.k = 7168;
  return problem;
}

std::vector<GemmConfig> covering_gemm_configs(const GemmProblem& problem,
                                              const DeviceSpec& device) {
  return cover_features(candidates(problem, kDynamic, device).admitted, pairs_of);
}

namespace {

constexpr auto kOutputs = std::to_array<std::pair<DType, bool>>({{DType::kBF16, false},
                                                                 {DType::kBF16, true},
                                                                 {DType::kFP16, false},
                                                                 {DType::kFP32, false},
                                                                 {DType::kFP32, true}});

// Adds the problem's configurations. Each is tried with a few of the options, so that few variants
// remain to choose from; some configurations have no options.
void add_variants(const GemmProblem& problem, const DeviceSpec& device,
                  std::vector<GemmVariant>& all) {
  const std::vector<GemmConfig> configs = covering_gemm_configs(problem, device);
  const std::vector<GemmProblem> problems = with_options(problem);
  for (std::size_t i = 0; i < configs.size() * 4; ++i) {
    const GemmConfig& config = configs[i % configs.size()];
    const GemmProblem& options = problems[i < configs.size() ? 0 : i * 7 % problems.size()];
    if (refused_by(config, options, kDynamic, device) == nullptr) all.push_back({options, config});
  }
}

std::vector<GemmVariant> cover_variants(std::vector<GemmVariant> all, int choice) {
  if (all.empty()) return all;
  // The order decides between variants that cover as much.
  constexpr std::size_t kStep = 997;
  std::ranges::rotate(
      all, all.begin() +
               static_cast<std::ptrdiff_t>(static_cast<std::size_t>(choice) * kStep % all.size()));
  return cover_features(all, pairs_of_variant);
}

// Returns a problem with scales of blocks and tokens in k if B has row scales.
GemmProblem block_problem(Granularity scaling_of_b, const TensorType& d, int promote) {
  GemmProblem problem = splittable_gemm_problem();
  problem.b.granularity = scaling_of_b;
  if (scheme_of(problem) == Scheme::kRowB) std::swap(problem.m, problem.k);
  problem.d = d;
  problem.promote = promote;
  return problem;
}

// Returns variants with scales of blocks.
std::vector<GemmVariant> block_variants(const DeviceSpec& device) {
  std::vector<GemmVariant> all;
  for (const Granularity scaling : {Granularity::k128x128, Granularity::k1x128}) {
    for (const auto& [d, accumulate] : kOutputs) {
      for (const int promote : {32, 64, 128}) {
        GemmProblem problem = block_problem(scaling, {d}, promote);
        problem.accumulate = accumulate;
        add_variants(problem, device, all);
      }
    }
  }
  return all;
}

// Returns variants of which the tensor core may multiply the scales.
std::vector<GemmVariant> variants_of_powers(const DeviceSpec& device) {
  std::vector<GemmVariant> all;
  for (const auto& [d, accumulate] : kOutputs) {
    GemmProblem problem = block_problem(Granularity::k1x128, {d}, 128);
    problem.a.scale = problem.b.scale = ScaleFormat::kF32Pow2;
    problem.accumulate = accumulate;
    add_variants(problem, device, all);
  }
  std::erase_if(all, [](const GemmVariant& v) { return !v.config.mma_factors; });
  return all;
}

// Returns variants with scales that serve all of K. Some of the GEMMs sum the tokens.
std::vector<GemmVariant> variants_scaled_at_end(const DeviceSpec& device) {
  std::vector<GemmVariant> all;
  for (const Granularity scaling : {Granularity::kPerRow, Granularity::kPerTensor}) {
    for (const auto& [d, accumulate] : kOutputs) {
      for (const int promote : {128, 256, 512, kPromoteNone}) {
        GemmProblem problem = splittable_gemm_problem();
        problem.a.granularity = problem.b.granularity = scaling;
        if (d == DType::kFP32) std::swap(problem.m, problem.k);
        problem.d = {d};
        problem.accumulate = accumulate;
        problem.promote = promote;
        add_variants(problem, device, all);
      }
    }
  }
  return all;
}

// Returns kernels of MX operands. If B has 1x32 scales, the tokens are in k.
std::vector<GemmVariant> mx_variants(const DeviceSpec& device) {
  std::vector<GemmVariant> all;
  for (const Granularity scaling : {Granularity::k1x32, Granularity::k32x32}) {
    for (const auto& [d, accumulate] : kOutputs) {
      GemmProblem problem = splittable_gemm_problem();
      problem.a = {DType::kE4M3, Granularity::k1x32, ScaleFormat::kE8M0};
      problem.b = {DType::kE4M3, scaling, ScaleFormat::kE8M0};
      problem.promote = 32;
      if (scaling == Granularity::k1x32) std::swap(problem.m, problem.k);
      problem.d = {d};
      problem.accumulate = accumulate;
      add_variants(problem, device, all);
    }
  }
  return all;
}

}  // namespace

std::vector<GemmVariant> covering_family_variants(VariantFamily family, const DeviceSpec& device,
                                                  int choice) {
  switch (family) {
    case VariantFamily::kBlocks:
      return cover_variants(block_variants(device), choice);
    case VariantFamily::kScaledAtEnd:
      return cover_variants(variants_scaled_at_end(device), choice);
    case VariantFamily::kMx:
      return cover_variants(mx_variants(device), choice);
    case VariantFamily::kPowers:
      return cover_variants(variants_of_powers(device), choice);
  }
  return {};
}

std::vector<GemmVariant> covering_gemm_variants(const DeviceSpec& device, int choice) {
  std::vector<GemmVariant> all;
  for (const VariantFamily family : kVariantFamilies) {
    for (const GemmVariant& v : covering_family_variants(family, device, choice)) all.push_back(v);
  }
  return all;
}

std::vector<GemmVariant> covering_fp8_d_variants(const DeviceSpec& device) {
  std::vector<GemmVariant> all;
  for (const Granularity scaling : {Granularity::k128x128, Granularity::k1x128}) {
    for (const DType d : {DType::kE4M3, DType::kE5M2}) {
      for (const ScaleFormat scale : {ScaleFormat::kF32, ScaleFormat::kF32Pow2}) {
        for (const int promote : {32, 64, 128}) {
          add_variants(block_problem(scaling, {d, Granularity::k1x128, scale}, promote), device,
                       all);
        }
      }
    }
  }
  return cover_features(all, pairs_of_variant);
}

namespace {

// Returns a recipe of groups with the extents of splittable_gemm_problem.
GemmProblem recipe_of(Grouping grouping, bool of_k, DType d, bool accumulate) {
  GemmProblem p = splittable_gemm_problem();
  p.grouping = grouping;
  p.groups = 8;
  p.d.dtype = d;
  p.accumulate = accumulate;
  if (of_k) {
    p.b.granularity = Granularity::k1x128;
    std::swap(p.m, p.k);
  }
  return p;
}

void set_scaling(GemmProblem& p, Granularity granularity, int promote) {
  p.a.granularity = p.b.granularity = granularity;
  p.promote = promote;
}

// Returns each recipe with configurations in which every pair of values occurs that it admits.
std::vector<GemmVariant> covering_variants_of(const std::vector<GemmProblem>& recipes,
                                              const DeviceSpec& device) {
  std::vector<GemmVariant> all;
  for (const GemmProblem& recipe : recipes) {
    for (const GemmConfig& config : covering_gemm_configs(recipe, device)) {
      all.push_back({recipe, config});
    }
  }
  return all;
}

}  // namespace

std::vector<GemmProblem> group_recipes() {
  std::vector<GemmProblem> all{
      recipe_of(Grouping::kContiguous, false, DType::kBF16, false),
      recipe_of(Grouping::kMasked, false, DType::kBF16, false),
      recipe_of(Grouping::kContiguous, true, DType::kFP32, true),
      recipe_of(Grouping::kContiguous, false, DType::kFP32, true),
      recipe_of(Grouping::kContiguous, true, DType::kBF16, false),
      recipe_of(Grouping::kMasked, false, DType::kFP16, false),
      recipe_of(Grouping::kContiguous, false, DType::kBF16, false),
      recipe_of(Grouping::kMasked, false, DType::kBF16, false),
      recipe_of(Grouping::kContiguous, false, DType::kFP16, false),
      recipe_of(Grouping::kContiguous, true, DType::kFP32, true),
      recipe_of(Grouping::kContiguous, true, DType::kFP32, true),
  };
  all[3].a.scale = ScaleFormat::kUe8m0x4;
  all[3].a.dtype = DType::kE5M2;
  all[4].b.dtype = DType::kE5M2;
  all[5].promote = 64;
  all[5].a.scale = ScaleFormat::kF32Pow2;
  set_scaling(all[6], Granularity::kPerRow, kPromoteNone);
  set_scaling(all[7], Granularity::kPerRow, 256);
  set_scaling(all[8], Granularity::kPerTensor, kPromoteNone);
  set_scaling(all[9], Granularity::kPerTensor, 128);
  all[10].a.scale = all[10].b.scale = ScaleFormat::kF32Pow2;
  return all;
}

std::vector<GemmProblem> batch_recipes() {
  std::vector<GemmProblem> all(7, splittable_gemm_problem());
  for (GemmProblem& p : all) p.batch = 8;
  all[1].b.granularity = Granularity::k1x128;
  all[1].d.dtype = DType::kFP32;
  all[1].accumulate = true;
  all[2].a.scale = ScaleFormat::kUe8m0x4;
  all[2].d.dtype = DType::kFP32;
  all[2].b.dtype = DType::kE5M2;
  all[3].b.granularity = Granularity::k1x128;
  all[3].a.dtype = DType::kE5M2;
  all[3].b.scale = ScaleFormat::kUe8m0x4;
  all[3].promote = 64;
  all[4].accumulate = true;
  all[4].sentry = Sentry::kWord;
  all[5].d.dtype = DType::kFP16;
  all[5].promote = 32;
  all[5].a.scale = all[5].b.scale = ScaleFormat::kF32Pow2;
  all[6].b.granularity = Granularity::k1x128;
  all[6].a.scale = all[6].b.scale = ScaleFormat::kF32Pow2;
  return all;
}

std::vector<GemmVariant> covering_batch_variants(const DeviceSpec& device) {
  return covering_variants_of(batch_recipes(), device);
}

std::vector<GemmVariant> covering_group_variants(const DeviceSpec& device) {
  return covering_variants_of(group_recipes(), device);
}

}  // namespace octile::tests
