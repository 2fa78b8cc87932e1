// A small set of GEMM configurations that the GPU suite runs and CI compiles. Every pair of values
// of two axes that the constraints admit together occurs at least once.
#pragma once

#include <array>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/families.h"
#include "generator/gemm/config.h"

namespace octile::tests {

// Returns a problem that admits every axis: its K is long enough for any split.
GemmProblem splittable_gemm_problem();
std::vector<GemmConfig> covering_gemm_configs(const GemmProblem& problem, const DeviceSpec& device);

// A kernel of the family.
struct GemmVariant {
  GemmProblem problem;
  GemmConfig config;
};
// Returns kernels in which every pair of values occurs of: scaling, type of D with or without
// addition, bias, sentry, promotion interval, formats, and the configuration's rows, consumers,
// cluster, splits, store, overlap and held scales. The problems' extents are those of
// splittable_gemm_problem, with tokens in k if B has row scales. Each `choice` is another such set.
std::vector<GemmVariant> covering_gemm_variants(const DeviceSpec& device, int choice = 0);

// The sets of which that one consists.
enum class VariantFamily { kBlocks, kScaledAtEnd, kMx, kPowers };
inline constexpr std::array kVariantFamilies{VariantFamily::kBlocks, VariantFamily::kScaledAtEnd,
                                             VariantFamily::kMx, VariantFamily::kPowers};
std::vector<GemmVariant> covering_family_variants(VariantFamily family, const DeviceSpec& device,
                                                  int choice = 0);

// Returns every kind of groups, with types of D, scale formats and intervals among them.
std::vector<GemmProblem> group_recipes();
// Returns each of them with configurations in which every pair of values occurs that it admits.
std::vector<GemmVariant> covering_group_variants(const DeviceSpec& device);
// Returns problems of a batch, with every scaling, type of D and interval, and configurations of
// each.
std::vector<GemmProblem> batch_recipes();
std::vector<GemmVariant> covering_batch_variants(const DeviceSpec& device);
// Returns the same of FP8 D: every pair of scaling, type and scale format of D, bias, sentry,
// promotion interval, formats, rows, consumers, cluster and overlap.
std::vector<GemmVariant> covering_fp8_d_variants(const DeviceSpec& device);

}  // namespace octile::tests
