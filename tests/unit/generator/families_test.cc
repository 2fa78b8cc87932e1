// Problems and configurations of any family: the dispatch over the list, and the token axis.
#include "generator/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "generator/gemm/passes.h"
#include "runtime/engine/choice.h"
#include "runtime/engine/engine.h"

namespace octile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const DeviceSpec& h200() { return *find_device("h200"); }

Problem problem_of(const std::string& text) {
  auto problem = parse_problem(text);
  if (!problem) throw std::invalid_argument(problem.error().message);
  return *problem;
}

const Problem kGemm =
    problem_of("gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
const Problem kWeightGradient =
    problem_of("gemm m=7168 n=2048 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128");
const Problem kQuantize = problem_of("quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row");
const Problem kTranspose =
    problem_of("transpose rows=64 cols=256 x=e4m3:128x128 q=e4m3:128x128 out=col");

TEST(Families, AreNamedAndHaveOperations) {
  EXPECT_EQ(family_name(kGemm), "gemm");
  EXPECT_EQ(family_name(kTranspose), "quantize");
  EXPECT_EQ(operation_of(kGemm), "gemm");
  EXPECT_EQ(operation_of(kTranspose), "transpose");
  EXPECT_EQ(parse_problem("cast rows=1").error().message,
            "a problem begins with 'cast'; allowed are gemm, quantize, dequantize, transpose, "
            "gather, amax");
}

TEST(Families, ShortTextBeginsWithTheShape) {
  EXPECT_EQ(short_text(with_tokens(kGemm, 64)), "64x7168x2048");
  EXPECT_EQ(short_text(kTranspose), "64x256 transpose x=e4m3:128x128 q=e4m3:128x128 out=col");
  EXPECT_EQ(short_text(with_tokens(kQuantize, 9)), "9x7168 q=e4m3:1x128 out=row");
}

// Tables of several passes tell their GEMMs apart.
TEST(Families, ShortTextHasTheFieldsThatAreNotAForwardGemms) {
  EXPECT_EQ(short_text(kWeightGradient), "7168x2048x? b=e4m3:1x128 d=fp32 acc=1");
  EXPECT_EQ(short_text(with_tokens(kWeightGradient, 64)), "7168x2048x64 b=e4m3:1x128 d=fp32 acc=1");
  EXPECT_EQ(short_text(problem_of("gemm m=64 n=256 k=512 a=e5m2:1x128 b=e4m3:128x128 d=bf16 acc=0 "
                                  "promote=64 bias=fp32 sentry=1 invariant=1")),
            "64x256x512 a=e5m2:1x128 promote=64 bias=fp32 sentry=1 invariant=1");
}

TEST(Families, ReadConfigurationsOfTheProblemsFamily) {
  for (const Problem& problem : {kGemm, kQuantize}) {
    const KernelConfig config = default_config(problem, 4096, h200());
    const auto again = parse_config(problem, to_text(config));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, config);
  }
  EXPECT_THAT(parse_config(kGemm, "threads=64").error().message,
              HasSubstr("GEMM configuration field 'threads=64'"));
  EXPECT_THAT(parse_config(kQuantize, "wg=2").error().message,
              HasSubstr("quantise configuration field 'wg=2'"));
}

TEST(Families, AMixedPairIsReportedByEmit) {
  const KernelConfig config = default_config(kGemm, 64, h200());
  const auto emitted = emit(kQuantize, config, h200(), embedded_templates());
  ASSERT_FALSE(emitted);
  EXPECT_EQ(emitted.error().code, ErrorCode::kInternal);
  EXPECT_EQ(emitted.error().message, "problem '" + to_text(kQuantize) +
                                         "' was given a configuration of another kernel family");
}

TEST(Families, CandidatesAreThoseOfTheFamily) {
  for (const Problem& problem : {kGemm, kQuantize}) {
    const Candidates all = candidates(problem, 4096, h200());
    ASSERT_FALSE(all.admitted.empty());
    std::size_t counted = all.admitted.size();
    for (const Removal& removal : all.removed) {
      EXPECT_FALSE(removal.reason.empty()) << removal.name;
      counted += removal.count;
    }
    EXPECT_EQ(counted, all.enumerated);
    const KernelConfig& some = all.admitted.back();
    EXPECT_EQ(rejection_reason(some, problem, 4096, h200()), std::nullopt) << to_text(some);
    EXPECT_GT(estimate_us(some, problem, 4096, h200()), 0);
  }
  EXPECT_TRUE(estimates_time(kGemm));
  EXPECT_FALSE(estimates_time(kQuantize));
}

TEST(Families, RejectionNamesTheRule) {
  EXPECT_THAT(rejection_reason(*parse_config(kGemm, "stages=2"), kGemm, 64, h200()).value(),
              HasSubstr("ring_is_a_pipeline refuses it: the ring holds 3 to 16 stages"));
  EXPECT_TRUE(rejection_reason(*parse_config(kQuantize, "tile=3x256"), kQuantize, 64, h200()));
}

TEST(Families, VariantsAreTheRastersOfAGemm) {
  const KernelConfig config = default_config(kGemm, 8192, h200());
  const auto others = variants(config, kGemm, 8192);
  EXPECT_GT(others.size(), 1U);
  for (const KernelConfig& other : others) EXPECT_NE(other, config);
  EXPECT_TRUE(variants(config, kGemm, 1).empty()) << "one row of tiles";
  EXPECT_TRUE(variants(default_config(kQuantize, 8192, h200()), kQuantize, 8192).empty());
}

TEST(Families, OnlyAnInvariantGemmAsksForTheSameNumerics) {
  const Problem invariant = problem_of(to_text(kGemm) + " invariant=1");
  EXPECT_EQ(without_invariance(invariant), kGemm);
  EXPECT_EQ(without_invariance(kGemm), std::nullopt);
  EXPECT_EQ(without_invariance(kQuantize), std::nullopt);
  const KernelConfig whole = *parse_config(kGemm, "splits=1");
  EXPECT_EQ(numerics_difference(whole, *parse_config(kGemm, "splits=1 stages=4")), std::nullopt);
  EXPECT_EQ(numerics_difference(*parse_config(kGemm, "splits=4"), whole),
            "its numerics are promote=128 splits=4, those of every token count promote=128 "
            "splits=1");
  EXPECT_EQ(numerics_difference(*parse_config(kGemm, "promote=none"), whole),
            "its numerics are promote=none splits=1, those of every token count promote=128 "
            "splits=1");
}

TEST(Families, EmptyResultsNeedNoLaunch) {
  EXPECT_FALSE(is_empty(kGemm));
  EXPECT_TRUE(is_empty(
      problem_of("gemm m=? n=0 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128")));
  EXPECT_TRUE(is_empty(problem_of("quantize rows=? cols=0 x=bf16 q=e4m3:1x128 out=row")));
}

// ---- the token axis

TEST(TokenAxis, IsTheDimensionThatMayBeDynamic) {
  EXPECT_EQ(token_axis(kGemm), (TokenAxis{"m", kDynamic}));
  EXPECT_EQ(token_axis(kWeightGradient), (TokenAxis{"k", kDynamic}));
  EXPECT_EQ(token_axis(kQuantize), (TokenAxis{"rows", kDynamic, "rows"}));
  EXPECT_EQ(token_axis(kTranspose), (TokenAxis{"rows", 64, "rows"}));
  EXPECT_EQ(token_axis(with_tokens(kGemm, 300)), (TokenAxis{"m", 300}));
}

TEST(TokenAxis, TakesTheTokenCount) {
  EXPECT_EQ(to_text(with_tokens(kWeightGradient, 4096)),
            "gemm m=7168 n=2048 k=4096 a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128");
  EXPECT_THAT(to_text(with_tokens(kQuantize, 5)), HasSubstr("quantize rows=5 cols=7168"));
  EXPECT_EQ(with_dynamic_tokens(with_tokens(kGemm, 64)), kGemm);
  EXPECT_EQ(with_dynamic_tokens(kWeightGradient), kWeightGradient);
  EXPECT_THAT(extents(kWeightGradient),
              ElementsAre(Extent{"n", 2048}, Extent{"k", kDynamic}, Extent{"m", 7168}));
}

TEST(TokenAxis, NamesTheTextOfTuningRecords) {
  EXPECT_EQ(tuning_text(kWeightGradient), to_text(kWeightGradient));
  EXPECT_EQ(tuning_text(with_tokens(kGemm, 64)), to_text(kGemm));
  EXPECT_EQ(tuning_text(kTranspose),
            "transpose rows=? cols=256 x=e4m3:128x128 q=e4m3:128x128 out=col");
}

TEST(TokenAxis, OfAWeightGradientIsWhatTheCostModelSees) {
  EXPECT_EQ(flops(kWeightGradient, 4096), 2.0 * 7168 * 2048 * 4096);
  const KernelConfig config = default_config(kWeightGradient, 4096, h200());
  const double few = estimate_us(config, kWeightGradient, 4096, h200());
  const double many = estimate_us(config, kWeightGradient, 16384, h200());
  EXPECT_GT(many, 2 * few);
  EXPECT_EQ(few, estimate_us(config, with_tokens(kWeightGradient, 4096), 7168, h200()))
      << "the same GEMM with its tokens in m";
  EXPECT_EQ(candidates(kWeightGradient, 128, h200()).admitted.size(),
            candidates(with_tokens(kWeightGradient, 128), 7168, h200()).admitted.size());
  EXPECT_FALSE(variants(config, kWeightGradient, 4096).empty());
  EXPECT_TRUE(check_supported(kWeightGradient));
}

TEST(TokenAxis, LeavesSplitsToTheCountIfItIsDynamic) {
  const KernelConfig split =
      *parse_config(kGemm, "tile=64x64x128 wg=1 stages=4 splits=4 store=direct");
  EXPECT_EQ(rejection_reason(split, kWeightGradient, kDynamic, h200()), std::nullopt);
  EXPECT_EQ(rejection_reason(split, kWeightGradient, 512, h200()), std::nullopt);
  EXPECT_THAT(rejection_reason(split, kWeightGradient, 256, h200()).value(),
              HasSubstr("splits_are_allowed"));
}

}  // namespace
}  // namespace octile
