// GEMMs whose tensors begin or end where mapped memory does: no kernel touches an address outside
// them, even one that it would not use.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "generator/families.h"
#include "tests/gpu/gemm_case.h"
#include "tests/gpu/gemm_group_case.h"
#include "tests/gpu/gemm_guarded_pages.h"
#include "tests/gpu/gemm_parts.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {
namespace {

// The last group ends a few rows behind a tile, so that the other tile of a cluster has no row.
TEST_F(GemmGuardedPages, OfGroups) {
  std::uint64_t seed = 48000;
  std::size_t cases = 0;
  const std::vector<GemmVariant> variants = covering_group_variants(gpu().device());
  compile_variants(variants);
  for (const auto& [recipe, config] : variants) {
    GemmGroupCase c(gpu(), recipe, {700, 0, 64, 2 * config.block_m + 4}, 904, 2032, ++seed);
    if (refused_by(config, c.problem(), kDynamic, gpu().device()) != nullptr) continue;
    for (const GuardedEnd end : kEnds) compare(c, config, end);
    if (HasFailure()) FAIL() << to_text(c.problem()) << "\n" << to_text(config);
    ++cases;
  }
  count_cases(cases, 0);
  EXPECT_GT(cases, 0U);
}

// m and n end within the first of a cluster's tiles.
TEST_F(GemmGuardedPages, OfOneGemm) {
  std::uint64_t seed = 49000;
  std::size_t cases = 0;
  std::vector<GemmVariant> variants = covering_gemm_variants(gpu().device());
  std::erase_if(variants, [](const GemmVariant& v) { return cluster_size(v.config) == 1; });
  compile_variants(variants);
  for (const auto& [recipe, config] : variants) {
    const GemmShape shape{2 * config.block_m + 4, 2 * config.block_n + 8, 2032};
    GemmCase c(gpu(), recipe, shape, ++seed);
    if (refused_by(config, c.problem(), kDynamic, gpu().device()) != nullptr) continue;
    for (const GuardedEnd end : kEnds) compare(c, config, end);
    if (HasFailure()) FAIL() << to_text(c.problem()) << "\n" << to_text(config);
    ++cases;
  }
  count_cases(cases, 0);
  EXPECT_GT(cases, 0U);
}

}  // namespace
}  // namespace octile::tests
