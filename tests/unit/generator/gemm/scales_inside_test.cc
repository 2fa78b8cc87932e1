// GEMMs without promotion whose block scales the instruction multiplies: which units and
// configurations have them, what they are emitted from, and what they are estimated to take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "generator/families.h"
#include "generator/gemm/candidates.h"
#include "generator/gemm/constraints.h"
#include "generator/gemm/cost.h"
#include "generator/gemm/emit.h"
#include "runtime/engine/engine.h"

namespace octile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const DeviceSpec& card() { return *find_device("rtx5090"); }

GemmProblem inside_gemm(const std::string& text) {
  const auto problem = parse_problem(text);
  EXPECT_TRUE(problem) << problem.error().message;
  return std::get<GemmProblem>(*problem);
}

const std::string kDense =
    "gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none";
const std::string kWgrad =
    "gemm m=7168 n=7168 k=? a=e5m2:1x128:ue8m0x4 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=none";
const std::string kMx = "gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=none";

TEST(GemmScalesInside, OnlyTheUnitThatMultipliesThemHasCandidates) {
  for (const std::string& text : {kDense, kWgrad, kMx, kDense + " group=masked groups=8"}) {
    const GemmCandidates all = candidates(inside_gemm(text), 512, card());
    EXPECT_GT(all.admitted.size(), 20U) << text;
    for (const GemmConfig& c : all.admitted)
      EXPECT_EQ(c.unit, MatrixUnit::kMmaScaled) << to_text(c);
    EXPECT_TRUE(std::ranges::any_of(all.removed, [](const Removal& removal) {
      return removal.name == "unit_multiplies_scales" && removal.count > 0;
    })) << text;
  }
  const GemmConfig plain = *parse_gemm_config("tile=64x64x128 stages=3 wg=1 promote=none unit=mma");
  const GemmConstraint* refusal = refused_by(plain, inside_gemm(kDense), kDynamic, card());
  ASSERT_NE(refusal, nullptr);
  EXPECT_EQ(refusal->name, "unit_multiplies_scales");
  for (const char* other : {"h200", "l40s", "b200"})
    EXPECT_TRUE(candidates(inside_gemm(kDense), 512, *find_device(other)).admitted.empty())
        << other;
}

// Nothing is promoted, so that no configuration is slower than with promotion.
TEST(GemmScalesInside, IsEstimatedWithoutPromotion) {
  for (const std::string& text : {kDense, kWgrad}) {
    const GemmProblem inside = inside_gemm(text);
    GemmProblem promoted = inside;
    promoted.promote = 128;
    for (const std::int64_t tokens : {1, 128, 4096}) {
      const GemmConfig config = default_config(inside, tokens, card());
      EXPECT_EQ(config.unit, MatrixUnit::kMmaScaled);
      EXPECT_EQ(config.promote, kPromoteNone);
      const double best =
          estimate_us(default_config(promoted, tokens, card()), promoted, tokens, card());
      EXPECT_LE(estimate_us(config, inside, tokens, card()), best) << text << " " << tokens;
    }
  }
}

// A stage has a word for each row of A, and one for each scale of B that the tile touches.
TEST(GemmScalesInside, StagesHoldAWordAScale) {
  GemmConfig config =
      *parse_gemm_config("tile=64x96x128 stages=3 wg=1 store=direct promote=none unit=mma_scaled");
  const auto bytes_of = [&](const std::string& text) {
    const GemmSmemLayout smem = resources_of(inside_gemm(text), config, card()).smem;
    return std::pair(smem.scale_a_stage_bytes, smem.scale_b_stage_bytes);
  };
  EXPECT_EQ(bytes_of(kDense), std::pair(256, 16));  // three runs of 32 columns in a block
  EXPECT_EQ(bytes_of(kWgrad), std::pair(256, 96 * 4));
  EXPECT_EQ(bytes_of(kMx), std::pair(256, 16));
}

TEST(GemmScalesInside, SourcesHaveTheInstructionAndNoPromotion) {
  const auto source_of = [&](const std::string& text) {
    const GemmProblem problem = inside_gemm(text);
    const auto kernel =
        emit(problem, default_config(problem, 512, card()), card(), embedded_templates());
    EXPECT_TRUE(kernel) << kernel.error().message;
    return kernel ? kernel->source : std::string();
  };
  EXPECT_THAT(source_of(kDense),
              AllOf(HasSubstr("gemm::scale::Inside<gemm::scale::BlockB<gemm::scale::Fp32>, 1>"),
                    HasSubstr("constexpr int kPromote = 0;"), HasSubstr("mxf8f6f4.block_scale"),
                    Not(HasSubstr("staged_mx.cuh"))));
  EXPECT_THAT(source_of(kWgrad),
              HasSubstr("gemm::scale::Inside<gemm::scale::RowB<gemm::scale::Ue8m0x4, "
                        "gemm::scale::Fp32>, 1>"));
  EXPECT_THAT(source_of(kMx),
              AllOf(HasSubstr("gemm::scale::Inside<gemm::scale::StagedMx<32>, 4>"),
                    HasSubstr("gemm/scale/staged_mx.cuh"), Not(HasSubstr("gemm/scale/mx.cuh"))));
}

// ---- by tcgen05

DeviceSpec card_of_tcgen05() { return find_device("b200")->with_all_units(); }

std::string refusal_by_tcgen05(const std::string& problem, const std::string& config) {
  const auto parsed = parse_gemm_config(config + " promote=none unit=tcgen05");
  const GemmConstraint* rule =
      refused_by(*parsed, inside_gemm(problem), kDynamic, card_of_tcgen05());
  return std::string(rule == nullptr ? "" : rule->name);
}

TEST(GemmScalesInTensorMemory, AllSchemesHaveCandidatesOfProductsOf128Rows) {
  for (const std::string& text : {kDense, kWgrad, kMx, kDense + " group=masked groups=8"}) {
    const GemmProblem problem = inside_gemm(text);
    const GemmCandidates all = candidates(problem, 4096, card_of_tcgen05());
    EXPECT_GT(all.admitted.size(), 20U) << text;
    for (const GemmConfig& c : all.admitted) {
      EXPECT_EQ(c.unit, MatrixUnit::kTcgen05) << to_text(c);
      EXPECT_EQ(rows_of_consumer(problem, c), 128) << to_text(c);
      EXPECT_LE(tensor_columns(problem, c), kTensorColumns) << to_text(c);
    }
    EXPECT_TRUE(std::ranges::any_of(all.removed, [](const Removal& removal) {
      return removal.name == "scaled_products_have_128_rows" && removal.count > 0;
    })) << text;
  }
}

// A stage's scales take four columns for each 128 rows of A, and for each 128 columns of D.
TEST(GemmScalesInTensorMemory, ScalesAndSumsFitTensorMemory) {
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=128x128x128 stages=5 wg=2 inflight=2"), "");
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=128x256x128 stages=3 wg=2 inflight=1"), "");
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=128x256x128 stages=3 wg=2 inflight=2"),
            "tensor_memory_holds_sums");
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=256x128x128 stages=3 wg=2 inflight=1"), "");
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=256x128x128 stages=3 wg=2 inflight=2"),
            "tensor_memory_holds_sums");
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=64x64x128 stages=3 wg=1"),
            "scaled_products_have_128_rows");
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=128x48x128 stages=3 wg=2"),
            "scaled_products_have_128_rows");
  EXPECT_EQ(refusal_by_tcgen05(kDense, "tile=192x96x128 stages=3 wg=3"),
            "scaled_products_have_128_rows");
  EXPECT_EQ(refusal_by_tcgen05(kMx, "tile=128x96x128 stages=3 wg=1 inflight=4"), "");
  EXPECT_EQ(refusal_by_tcgen05(kMx, "tile=128x80x128 stages=3 wg=1"), "mx_tiles_are_plain");
  const GemmConfig two_products =
      *parse_gemm_config("tile=256x144x128 stages=3 wg=2 inflight=1 promote=none unit=tcgen05");
  EXPECT_EQ(tensor_columns(inside_gemm(kDense), two_products), 2 * 144 + 3 * (2 + 2) * 4);
}

TEST(GemmScalesInTensorMemory, MxIsNotPromotedThere) {
  GemmProblem promoted = inside_gemm(kMx);
  promoted.promote = 32;
  const GemmConfig config =
      *parse_gemm_config("tile=128x96x128 stages=3 wg=1 promote=32 unit=tcgen05");
  const GemmConstraint* rule = refused_by(config, promoted, kDynamic, card_of_tcgen05());
  ASSERT_NE(rule, nullptr);
  EXPECT_EQ(rule->name, "tensor_memory_holds_sums");
}

TEST(GemmScalesInTensorMemory, StagesHoldScalesAsTheyAreCopied) {
  const auto bytes_of = [&](const std::string& text, const char* config) {
    const GemmSmemLayout smem =
        resources_of(inside_gemm(text),
                     *parse_gemm_config(std::string(config) + " promote=none unit=tcgen05"),
                     card_of_tcgen05())
            .smem;
    return std::pair(smem.scale_a_stage_bytes, smem.scale_b_stage_bytes);
  };
  for (const std::string& text : {kDense, kWgrad, kMx}) {
    EXPECT_EQ(bytes_of(text, "tile=128x96x128 stages=3 wg=2"), std::pair(512, 512));
    EXPECT_EQ(bytes_of(text, "tile=128x192x128 stages=3 wg=2"), std::pair(512, 1024));
    EXPECT_EQ(bytes_of(text, "tile=256x96x128 stages=3 wg=2"), std::pair(1024, 512));
  }
}

// A launch hands out 168 registers to each thread of three warpgroups, which setmaxnreg shares.
TEST(GemmScalesInTensorMemory, RolesShareRegisters) {
  const GemmResources r =
      resources_of(inside_gemm(kDense),
                   *parse_gemm_config("tile=128x128x128 stages=3 wg=2 promote=none unit=tcgen05"),
                   card_of_tcgen05());
  EXPECT_EQ(r.producer_registers, 88);
  EXPECT_EQ(r.consumer_registers, 208);
  EXPECT_LE(r.producer_registers + 2 * r.consumer_registers, 3 * 168);
}

// Nothing is promoted, so that large GEMMs take no longer than with promotion. Consumers of one
// slot take turns with the products of a tile, not of each K-block.
TEST(GemmScalesInTensorMemory, IsEstimatedWithoutPromotion) {
  const DeviceSpec device = card_of_tcgen05();
  for (const std::string& text : {kDense, kWgrad}) {
    const GemmProblem inside = inside_gemm(text);
    GemmProblem promoted = inside;
    promoted.promote = 128;
    for (const std::int64_t tokens : {4096, 16384}) {
      const GemmConfig config = default_config(inside, tokens, device);
      EXPECT_EQ(config.unit, MatrixUnit::kTcgen05);
      const GemmConfig other = default_config(promoted, tokens, device);
      EXPECT_LE(estimate_us(config, inside, tokens, device),
                1.001 * estimate_us(other, promoted, tokens, device))
          << text << " " << tokens;
    }
    GemmConfig one_slot =
        *parse_gemm_config("tile=128x256x128 stages=3 wg=2 inflight=1 promote=none unit=tcgen05");
    const double without = estimate(one_slot, inside, 16384, device).compute_us;
    one_slot.promote = 128;
    EXPECT_LT(without, 0.8 * estimate(one_slot, promoted, 16384, device).compute_us) << text;
  }
  const GemmProblem mx = inside_gemm(kMx);
  GemmProblem promoted = mx;
  promoted.promote = 32;
  EXPECT_LT(estimate_us(default_config(mx, 4096, device), mx, 4096, device),
            0.5 * estimate_us(default_config(promoted, 4096, device), promoted, 4096, device))
      << "promoted MX has mma.sync alone";
}

TEST(GemmScalesInTensorMemory, SourcesHaveTheInstruction) {
  const auto source_of = [&](const std::string& text) {
    const GemmProblem problem = inside_gemm(text);
    const auto kernel = emit(problem, default_config(problem, 512, card_of_tcgen05()),
                             card_of_tcgen05(), embedded_templates());
    EXPECT_TRUE(kernel) << kernel.error().message;
    return kernel ? kernel->source : std::string();
  };
  EXPECT_THAT(source_of(kDense),
              AllOf(HasSubstr("gemm::scale::InsideTcgen05<gemm::scale::Words<gemm::scale::RowWords<"
                              "gemm::scale::Fp32, cfg::kBlockM>, "
                              "gemm::scale::BlockWords<cfg::kBlockN>>>"),
                    HasSubstr("#define OCTILE_SCALES_IN_WORD 1"), Not(HasSubstr("mx_scales.cuh"))));
  EXPECT_THAT(source_of(kWgrad),
              HasSubstr("RowWords<gemm::scale::Ue8m0x4, cfg::kBlockM>, "
                        "gemm::scale::RowWords<gemm::scale::Fp32, cfg::kBlockN>"));
  EXPECT_THAT(source_of(kMx), AllOf(HasSubstr("InsideTcgen05<gemm::scale::MxWords<32>>"),
                                    HasSubstr("#define OCTILE_SCALES_IN_WORD 4")));
}

}  // namespace
}  // namespace octile
