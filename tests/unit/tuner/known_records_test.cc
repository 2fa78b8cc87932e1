// Which winners a search begins with, and which quantisers belong to a GEMM.
#include "runtime/tuner/known_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/tuner/operand_times.h"
#include "tests/support/tuning_testing.h"

namespace octile::tuner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const DeviceSpec& h200() { return *find_device("h200"); }

std::string text_of(int n, const std::string& rest = "") {
  return "gemm m=? n=" + std::to_string(n) +
         " k=4096 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128" + rest;
}
TuningTask task(int n, std::int64_t tokens) { return {*parse_problem(text_of(n)), tokens}; }

// Returns the `number`-th admitted configuration of the task.
KernelConfig admitted(const TuningTask& t, std::size_t number) {
  return candidates(t.problem, t.tokens, h200()).admitted.at(number);
}

cache::TuningRecord won(const TuningTask& t, const KernelConfig& winner,
                        const std::string& device = "h200") {
  return cache::testing::make_decision(octile::to_text(t.problem), t.tokens,
                                       octile::to_text(winner), device);
}

TEST(KnownRecords, WinnersAreThoseOfNeighboursThenOfTheSisterThenOfAnotherCard) {
  const TuningTask wanted = task(6144, 64);
  std::vector<KernelConfig> configs;
  for (const std::size_t number : {3U, 30U, 60U, 90U, 120U})
    configs.push_back(admitted(wanted, number));
  KnownRecords known;
  known.add(won(wanted, configs[0], "h100"));
  known.add(won(task(4096, 64), configs[1]));
  known.add(won(task(6144, 256), configs[2]));
  known.add(won(task(6144, 32), configs[3]));
  known.add(won(task(6144, 16), configs[4]));
  EXPECT_THAT(known.winners(wanted, h200()),
              ElementsAre(configs[3], configs[2], configs[1], configs[0]))
      << "two of a kind: the counts of a half and of four times";
}

TEST(KnownRecords, DecisionsOfTheRunPrecedeLoadedOnes) {
  const TuningTask wanted = task(6144, 64);
  auto loaded = std::make_shared<cache::TuningSet>();
  loaded->add({won(task(6144, 128), admitted(wanted, 40)), won(wanted, admitted(wanted, 80))}, "");
  KnownRecords known(loaded);
  EXPECT_THAT(known.winners(wanted, h200()),
              ElementsAre(admitted(wanted, 80), admitted(wanted, 40)));
  EXPECT_EQ(known.choose(wanted, h200()).by, ChosenBy::kRecord);
  known.add(won(wanted, admitted(wanted, 10)));
  EXPECT_EQ(known.winners(wanted, h200()).front(), admitted(wanted, 10));
  EXPECT_EQ(known.choose(wanted, h200()).config, admitted(wanted, 10));
}

TEST(KnownRecords, TheIncumbentIsALoadedDecisionOnExactlyThisQuestion) {
  const TuningTask wanted = task(6144, 64);
  auto loaded = std::make_shared<cache::TuningSet>();
  loaded->add({won(task(6144, 128), admitted(wanted, 40))}, "");
  KnownRecords near(loaded);
  near.add(won(wanted, admitted(wanted, 10)));
  EXPECT_EQ(near.incumbent(wanted, h200()), std::nullopt)
      << "neither a near record nor a decision of this run";
  loaded->add({won(wanted, admitted(wanted, 80))}, "");
  EXPECT_EQ(KnownRecords(loaded).incumbent(wanted, h200()), admitted(wanted, 80));
  EXPECT_EQ(KnownRecords().incumbent(wanted, h200()), std::nullopt);
}

TEST(KnownRecords, WhatTheProblemDoesNotAdmitIsNoCandidate) {
  const TuningTask wanted = task(6144, 64);
  KnownRecords known;
  cache::TuningRecord broken = won(task(6144, 128), admitted(wanted, 40));
  broken.winner.config = "tile=7x7x7";
  known.add(broken);
  EXPECT_THAT(known.winners(wanted, h200()), IsEmpty());
  EXPECT_EQ(known.choose(wanted, h200()).by, ChosenBy::kModel);
}

// The whole of it: from a task, what is known and a device to the ordered list.
TEST(KnownRecords, ASearchBesideWinnersTimesFewerCandidates) {
  const TuningTask wanted = task(6144, 64);
  KnownRecords known;
  const Exploration alone = explore(wanted, h200(), {}, known.winners(wanted, h200()));
  EXPECT_EQ(alone.shortlist.size(), 48);
  // Another raster of a configuration that the model likes is a variant no more.
  const std::vector<Ranked>& variants = alone.variants;
  ASSERT_FALSE(variants.empty());
  known.add(won(task(6144, 128), variants.front().config));
  const Exploration beside = explore(wanted, h200(), {}, known.winners(wanted, h200()));
  EXPECT_EQ(beside.shortlist.size(), 1 + 1 + 15 + 2);
  EXPECT_EQ(beside.shortlist[0].config, default_config(wanted.problem, 64, h200()));
  EXPECT_NE(std::ranges::find(beside.shortlist, variants.front().config, &Ranked::config),
            beside.shortlist.end());
  for (const Ranked& variant : beside.variants)
    EXPECT_FALSE(variant.config == variants.front().config) << "listed twice";
}

std::vector<std::string> quantizers(const std::string& gemm, std::int64_t tokens) {
  std::vector<std::string> all;
  for (const auto& [operand, of] : operand_quantizers({*parse_problem(gemm), tokens}))
    all.push_back(operand + ": " + to_text(of));
  return all;
}

TEST(OperandQuantizers, AreThoseOfTheLayer) {
  EXPECT_THAT(
      quantizers(text_of(6144), 64),
      ElementsAre(
          "a: quantize rows=? cols=4096 x=bf16 q=e4m3:1x128:pow2 out=row at 64 tokens",
          "b: quantize rows=? cols=4096 x=bf16 q=e4m3:128x128:pow2 out=row at 6144 tokens"));
  EXPECT_THAT(
      quantizers("gemm m=6144 n=4096 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128", 512),
      ElementsAre("a: quantize rows=? cols=6144 x=bf16 q=e4m3:1x128:pow2 out=col at 512 tokens",
                  "b: quantize rows=? cols=4096 x=bf16 q=e4m3:1x128:pow2 out=col at 512 tokens"));
  EXPECT_THAT(quantizers(text_of(128, " batch=16"), 4).front(),
              ::testing::EndsWith("out=row at 64 tokens"))
      << "of all products";
  EXPECT_THAT(quantizers("quantize rows=? cols=4096 x=bf16 q=e4m3:1x128 out=row", 4), IsEmpty());
}

// Masked groups are timed 32 at a time, for any problem.
TEST(OperandQuantizers, OfOtherNumbersOfMaskedGroupsHaveNoTime) {
  EXPECT_EQ(quantizers(text_of(4096, " group=masked groups=32"), 64).size(), 2);
  EXPECT_THAT(
      quantizers(text_of(4096, " group=masked groups=8"), 64),
      ElementsAre(
          "b: quantize rows=? cols=4096 x=bf16 q=e4m3:128x128:pow2 out=row at 4096 tokens"));
}

}  // namespace
}  // namespace octile::tuner
