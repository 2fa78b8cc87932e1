// Kernels by tcgen05: the words that they compose, and mistakes that the emulation finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "generator/families.h"
#include "tests/emulation/emulation_test.h"
#include "tests/emulation/gemm_case.h"
#include "tests/emulation/tcgen05_mutants.h"
#include "tests/support/coverage.h"
#include "tests/support/gemm_cells.h"

namespace octile {
namespace {

using emulation::EmulatedGemm;
using emulation::kMutants;

// Several tiles, more K-blocks than stages, and a tail of K.
EmulatedGemm call_of(const GemmConfig& config, std::uint64_t seed) {
  return {.m = 2 * config.block_m - 3,
          .n = 2 * config.block_n + 8,
          .k = 6 * 128 + 32,
          .clusters = 1,
          .seed = seed};
}

// Every mutant is found by one of these schedules. The kernels themselves pass all of them, of
// which a covering part is run.
constexpr std::uint64_t kSchedules = 30;
constexpr std::uint64_t kCoveringSchedules = 8;

class Tcgen05Mutants : public emulation::EmulationTest,
                       public ::testing::WithParamInterface<std::size_t> {};

TEST_P(Tcgen05Mutants, AreFound) {
  const emulation::EmittedGemm& emitted = emulation::emitted_mutants()[GetParam()];
  const tests::GemmVariant v = tests::gemm_cell(kMutants.at(GetParam()).kernel);
  std::string found;
  for (std::uint64_t seed = 1; seed <= kSchedules && found.empty(); ++seed)
    found = emulation::run_gemm({v.problem, v.config, emitted}, call_of(v.config, seed));
  EXPECT_NE(found, "") << kMutants.at(GetParam()).name;
  RecordProperty("found", found.substr(0, 200));
}

INSTANTIATE_TEST_SUITE_P(Each, Tcgen05Mutants, ::testing::Range(std::size_t{0}, kMutants.size()),
                         [](const auto& mutant) {
                           return std::string(kMutants.at(mutant.param).name);
                         });

using Tcgen05Emulation = emulation::EmulationTest;
TEST_F(Tcgen05Emulation, KernelsWithoutMistakesPass) {
  const std::uint64_t schedules = tests::runs_all_cases() ? kSchedules : kCoveringSchedules;
  int passed = 0;
  for (const emulation::EmittedGemmVariant& v : emulation::emitted_gemm_variants()) {
    const bool has_mutants = std::ranges::any_of(kMutants, [&](const emulation::Mutant& mutant) {
      const tests::GemmVariant of = tests::gemm_cell(mutant.kernel);
      return to_text(of.problem) == to_text(v.problem) && to_text(of.config) == to_text(v.config);
    });
    if (!has_mutants) continue;
    for (std::uint64_t seed = 1; seed <= schedules; ++seed) {
      EXPECT_EQ(emulation::run_gemm(v, call_of(v.config, seed)), "")
          << to_text(v.config) << " " << seed;
    }
    ++passed;
  }
  EXPECT_EQ(passed, 11);
}

// PTX ISA's tables, read a second time: by the bit-fields of a C struct, whose words are these.
TEST(Tcgen05Words, AreThoseOfASecondTable) {
  const auto descriptor = emulation::decode_descriptor(0x00011040, 0x40004040);
  EXPECT_EQ(descriptor.address, 0x10400U);
  EXPECT_EQ(descriptor.leading, 16U);
  EXPECT_EQ(descriptor.stride, 1024U);
  EXPECT_EQ(descriptor.version, 1U);
  EXPECT_EQ(descriptor.base_offset, 0U);
  EXPECT_EQ(descriptor.swizzle, 2U);
  EXPECT_EQ(descriptor.others, 0U);
  for (const auto& [word, m, n] : {std::tuple(0x4200010U, 64U, 128U), {0x8400010U, 128U, 256U}}) {
    const auto instruction = emulation::decode_instruction(word);
    EXPECT_EQ(instruction.m, m);
    EXPECT_EQ(instruction.n, n);
    EXPECT_EQ(instruction.sums, 1U);
    EXPECT_EQ(instruction.type_of_a, 0U);
    EXPECT_EQ(instruction.type_of_b, 0U);
    EXPECT_EQ(instruction.others, 0U);
  }
}

TEST(Tcgen05Words, OfScalesAreThoseOfASecondTable) {
  const auto descriptor = emulation::decode_descriptor(0x1040, 0x4008);
  EXPECT_EQ(descriptor.address, 0x10400U);
  EXPECT_EQ(descriptor.leading, 0U);
  EXPECT_EQ(descriptor.stride, 128U);
  EXPECT_EQ(descriptor.version, 1U);
  EXPECT_EQ(descriptor.base_offset, 0U);
  EXPECT_EQ(descriptor.swizzle, 0U);
  EXPECT_EQ(descriptor.others, 0U);
  for (const auto& [word, n, type_of_a, byte] : {std::tuple(0x8C00000U, 256U, 0U, 0U),
                                                 {0x68C00030U, 256U, 0U, 3U},
                                                 {0x489800A0U, 96U, 1U, 2U}}) {
    const auto instruction = emulation::decode_scaled_instruction(word);
    EXPECT_EQ(instruction.m, 128U);
    EXPECT_EQ(instruction.n, n);
    EXPECT_EQ(instruction.type_of_a, type_of_a);
    EXPECT_EQ(instruction.type_of_b, 0U);
    EXPECT_EQ(instruction.byte_of_a, byte);
    EXPECT_EQ(instruction.byte_of_b, byte);
    EXPECT_EQ(instruction.type_of_scales, 1U);
    EXPECT_EQ(instruction.others, 0U);
  }
}

}  // namespace
}  // namespace octile
