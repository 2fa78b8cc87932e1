// The tuner on a simulated device. The right decision is known, because the true times are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/tuner/regret.h"
#include "runtime/tuner/search.h"
#include "tests/support/simulated_gpu.h"

namespace octile::tuner {
namespace {

using test::SimulatedBench;
using test::SimulatedGpu;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kEnough = 60;  // in seconds
constexpr int kSeeds = 200;

SimulatedGpu gpu_with(const std::vector<double>& times_us, std::uint64_t seed = 1) {
  SimulatedGpu gpu;
  gpu.seed = seed;
  for (const double us : times_us) gpu.candidates.emplace_back().us = us;
  return gpu;
}

SearchResult run(const SimulatedGpu& gpu, double seconds = kEnough) {
  SimulatedBench bench(gpu);
  const Budget budget(bench.clock(), seconds);
  const auto result = search(bench, budget);
  EXPECT_TRUE(result) << result.error().message;
  return *result;
}

// Returns sixteen candidates whose true times are spread over 30 % by `seed`.
SimulatedGpu random_gpu(std::uint64_t seed) {
  std::vector<double> times;
  for (std::uint64_t i = 0; i < 16; ++i)
    times.push_back(10 * (1 + 0.3 * reference::random_uniform(seed + 77, i)));
  return gpu_with(times, seed);
}

double best_us(const SimulatedGpu& gpu) {
  return std::min_element(gpu.candidates.begin(), gpu.candidates.end(),
                          [](const auto& x, const auto& y) { return x.us < y.us; })
      ->us;
}

double us_of(const SimulatedGpu& gpu, int candidate) {
  return gpu.candidates[static_cast<std::size_t>(candidate)].us;
}

TEST(TunerSearch, PicksTheTrueBestWithinNoise) {
  int beyond = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimulatedGpu gpu = random_gpu(seed);
    const SearchResult result = run(gpu);
    // A tie is won by the preferred candidate, and without a gain the default stays.
    EXPECT_LE(result.race.noise, 0.01) << seed;
    const double tie = result.winner == 0 ? Allowances().standing_default : Allowances().tie;
    if (us_of(gpu, result.winner) > best_us(gpu) * (1 + tie + result.race.noise)) ++beyond;
  }
  // Intervals hold at 95 %, and a search compares nine finalists.
  EXPECT_LE(beyond, kSeeds / 50);
}

TEST(TunerSearch, FindsAClearWinnerEveryTime) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SearchResult result =
        run(gpu_with({10, 10.4, 9.5, 12, 30, 10.1, 9.9, 10.2, 10.3, 11}, seed));
    EXPECT_EQ(result.winner, 2) << seed;
    EXPECT_EQ(result.outcome, Outcome::kTuned);
    EXPECT_NEAR(result.race.gain, 10 / 9.5, 0.01);
    EXPECT_LE(result.race.gain_interval.lo, result.race.gain);
    EXPECT_GE(result.race.gain_interval.hi, result.race.gain);
    EXPECT_EQ(result.race.standings.front().candidate, 2);
  }
}

TEST(TunerSearch, TheDefaultStaysWhereNothingBeatsItByMoreThanTheNoise) {
  int moved = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    // All are equal, or faster by less than any noise.
    const SearchResult result =
        run(gpu_with({10, 10, 10, 9.99, 10, 10, 10, 9.985, 10, 10, 10}, seed));
    if (result.winner == 0) {
      EXPECT_EQ(result.outcome, Outcome::kDefaultStays);
    }
    moved += result.winner == 0 ? 0 : 1;
  }
  // Eight challengers have an interval that misses on one side in 1 of 100 cases.
  EXPECT_LE(moved, kSeeds / 12);
}

// A change for a smaller gain would depend on differences between races.
TEST(TunerSearch, TheDefaultStaysUnlessItIsLeftFarEnoughBehind) {
  for (std::uint64_t seed = 1; seed <= kSeeds / 4; ++seed) {
    EXPECT_EQ(run(gpu_with({10, 10.1, 9.94, 10.3}, seed)).winner, 0) << seed;
    EXPECT_EQ(run(gpu_with({10, 10.1, 9.84, 10.3}, seed)).winner, 2) << seed;
  }
}

TEST(TunerSearch, ATieFallsToThePreferredOne) {
  int other = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    // 2 and 4 are equal to a tenth of the noise; 4 is slightly faster.
    const SearchResult result = run(gpu_with({10, 11, 9, 12, 8.998}, seed));
    if (result.winner != 2) ++other;
  }
  EXPECT_LE(other, kSeeds / 20);
}

// The last candidate compiles for two seconds, in which the variants of the fastest do, too.
TEST(TunerSearch, VariantsCompileBesideTheLastCandidates) {
  SimulatedGpu gpu = gpu_with({10, 9, 11, 12, 8, 8});
  gpu.candidates[3].compile_seconds = 2;
  for (const std::size_t variant : {4U, 5U}) {
    gpu.candidates[variant].variant_of = 1;
    gpu.candidates[variant].compile_seconds = 1;
  }
  const SearchResult result = run(gpu);
  EXPECT_EQ(result.winner, 4);
  EXPECT_NEAR(result.seconds.builds, 2, 0.1);
}

TEST(TunerSearch, SaysWhereItsSecondsWent) {
  SimulatedGpu gpu = gpu_with({10, 9, 11, 12});
  SimulatedBench bench(gpu);
  const Budget budget(bench.clock(), kEnough);
  const auto result = search(bench, budget);
  ASSERT_TRUE(result);
  const auto& [builds, verify, first_times, race] = result->seconds;
  EXPECT_NEAR(verify, 4 * (gpu.spot_check_seconds + gpu.verify_seconds), 1e-9);
  EXPECT_NEAR(first_times, 8 * gpu.measurement_seconds, 1e-9);
  EXPECT_GT(builds, 0.1);
  EXPECT_NEAR(builds + verify + first_times + race, kEnough - budget.left(), 1e-9);
}

TEST(TunerSearch, AFirstTimeFarBehindIsTakenOnce) {
  const auto measured = [](double us) {
    SimulatedGpu gpu = gpu_with({10, us});
    gpu.noise = gpu.outlier_share = 0;
    SimulatedBench bench(gpu);
    EXPECT_TRUE(search(bench, Budget(bench.clock(), kEnough)));
    return bench.measurements;
  };
  EXPECT_EQ(measured(30) + 1, measured(13)) << "neither takes part in the race";
}

// Candidates 0 to 5 are as ranked; 6 to 11 are their variants. The search tries the variants of the
// best candidates and of the default.
TEST(TunerSearch, VariantsOfTheFastestTakePart) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedGpu gpu = gpu_with({10, 9, 11, 9.2, 12, 13, 9.7, 8.7, 10.6, 9.1, 5, 5}, seed);
    for (int i = 6; i < 12; ++i) gpu.candidates[static_cast<std::size_t>(i)].variant_of = i - 6;
    SimulatedBench bench(gpu);
    const auto result = search(bench, Budget(bench.clock(), kEnough));
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->winner, 7) << seed;
    EXPECT_EQ(result->outcome, Outcome::kTuned);
    EXPECT_THAT(bench.checked, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 9)) << seed;
    EXPECT_EQ(result->compiled, 9);
  }
}

TEST(TunerSearch, AVariantIsVerified) {
  SimulatedGpu gpu = gpu_with({10, 9, 8});
  gpu.candidates[2].variant_of = 1;
  gpu.candidates[2].wrong = "element 7";
  const SearchResult result = run(gpu);
  EXPECT_EQ(result.winner, 1);
  ASSERT_EQ(result.dropped.size(), 1U);
  EXPECT_EQ(result.dropped[0].candidate, 2);
}

TEST(TunerSearch, TwoSearchesFromScratchAgree) {
  int disagree = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimulatedGpu first = random_gpu(seed);
    SimulatedGpu second = first;
    second.seed = seed + 1000000;
    const SearchResult x = run(first);
    const SearchResult y = run(second);
    if (x.winner == y.winner) continue;
    ++disagree;
    const double apart = us_of(first, x.winner) / us_of(first, y.winner);
    // Both are ties of the same fastest candidate, or its distance from the default is near the
    // limit at which the default stays.
    const bool stays = x.winner == 0 || y.winner == 0;
    const double tie = stays ? Allowances().standing_default : Allowances().tie;
    EXPECT_NEAR(apart, 1, tie + std::max(x.race.noise, y.race.noise)) << seed;
  }
  EXPECT_LE(disagree, kSeeds / 20);
}

// The choice of an earlier search stays although four others are within the noise of it.
TEST(TunerSearch, AnIncumbentStaysInEverySearch) {
  RaceOptions options;
  options.incumbent = 5;
  for (std::uint64_t seed = 1; seed <= kSeeds / 4; ++seed) {
    SimulatedBench bench(gpu_with({10, 9.03, 9.01, 9, 9.02, 9.05, 9.8}, seed));
    const auto result = search(bench, Budget(bench.clock(), kEnough), options);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->winner, 5) << seed;
    EXPECT_LE(result->race.blocks, options.least_blocks + 6) << "nothing is open";
    SimulatedBench beaten(gpu_with({10, 9.03, 9.01, 9, 9.02, 9.3, 9.8}, seed));
    const auto other = search(beaten, Budget(beaten.clock(), kEnough), options);
    ASSERT_TRUE(other);
    EXPECT_NE(other->winner, 5) << seed;
  }
}

TEST(TunerSearch, AnOpenFinalOfLongCallsEndsInTime) {
  SimulatedGpu gpu = gpu_with({10, 9.9, 9.9});
  gpu.noise = 0.03;
  const auto blocks = [&](double measurement_seconds) {
    gpu.measurement_seconds = measurement_seconds;
    SimulatedBench bench(gpu);
    return search(bench, Budget(bench.clock(), kEnough))->race.blocks;
  };
  EXPECT_EQ(blocks(0.001), RaceOptions().most_blocks);
  EXPECT_EQ(blocks(0.02), 13) << "of six measurements each, in 1.5 seconds";
  EXPECT_EQ(blocks(0.2), 6) << "the fewest whose ranks give an interval";
}

TEST(TunerSearch, AnIncumbentTakesPartWhateverItsTimes) {
  RaceOptions options;
  options.incumbent = 2;
  SimulatedBench bench(gpu_with({10, 9, 14, 10.1, 10.2, 9.3, 9.4, 9.5, 9.6, 9.7, 9.8, 9.9}));
  const auto result = search(bench, Budget(bench.clock(), kEnough), options);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->winner, 1);
  const auto& standings = result->race.standings;
  const auto own = std::ranges::find(standings, 2, &Standing::candidate);
  ASSERT_NE(own, standings.end());
  EXPECT_NEAR(own->over_best, 14 / 9.0, 0.02);
  EXPECT_LE(own->over_best_interval.lo, own->over_best);
}

// Finalists that are far behind are timed in two blocks of the ten.
TEST(TunerSearch, AFinalistFarBehindDropsOutEarly) {
  const auto measured = [](double us) {
    SimulatedGpu gpu = gpu_with({10, 9, us, us, us, us});
    gpu.noise = gpu.outlier_share = 0;
    SimulatedBench bench(gpu);
    EXPECT_EQ(search(bench, Budget(bench.clock(), kEnough))->winner, 1);
    return bench.measurements;
  };
  constexpr int kOthers = 4, kABlock = 2;
  EXPECT_EQ(measured(9.03) - measured(9.9), kOthers * kABlock * (10 - 2));
  EXPECT_EQ(measured(9.03) - measured(9.2), kOthers * kABlock * (10 - 6));
}

TEST(TunerSearch, ARegretIsReadFromTheRaceOfADecision) {
  RaceOptions options;
  options.incumbent = 3;
  SimulatedBench bench(gpu_with({10, 9.5, 9, 9.09, 9.7}));
  const auto found = search(bench, Budget(bench.clock(), kEnough), options);
  ASSERT_TRUE(found);
  const auto name = [&](int candidate) { return bench.name(candidate); };
  const Regret regret = regret_of(*found, 3, name);
  EXPECT_TRUE(regret.finished);
  EXPECT_EQ(regret.config, "candidate 3");
  EXPECT_EQ(regret.fastest, "candidate 2");
  EXPECT_NEAR(regret.over_fastest, 1.01, 0.003);
  EXPECT_LE(regret.over_fastest_interval.lo, regret.over_fastest);
  EXPECT_GE(regret.over_fastest_interval.hi, regret.over_fastest);
  EXPECT_EQ(regret.timed, 5);
  EXPECT_EQ(regret_of(*found, 2, name).over_fastest, 1);
  EXPECT_TRUE(regret.wrong.empty());
  SearchResult cut = *found;
  cut.dropped.push_back({4, Stage::kVerify, "zero"});
  cut.dropped.push_back({1, Stage::kSpills, "8 bytes"});
  EXPECT_THAT(regret_of(cut, 3, name).wrong, ::testing::ElementsAre("candidate 4 is wrong: zero"));
  cut.race.finished = false;
  EXPECT_FALSE(regret_of(cut, 3, name).finished);
}

TEST(Regret, WhatTheModelLikesAndTheDecisionAreListed) {
  const DeviceSpec& device = *find_device("h200");
  GemmProblem problem;
  problem.n = 2112;
  problem.k = 7168;
  const TuningTask task{problem, 64};
  std::vector<Ranked> all = space_of(task, device).admitted;
  std::ranges::sort(all, {}, &Ranked::estimate_us);
  const KernelConfig last = all.back().config;
  const Exploration listed = listed_for_regret(task, device, last, {.within = 1.3, .most = 30});
  EXPECT_EQ(listed.admitted, all.size());
  const auto& list = listed.shortlist;
  EXPECT_NE(std::ranges::find(list, last, &Ranked::config), list.end());
  EXPECT_EQ(list.size(), 30 + 1);
  for (const Ranked& one : list) {
    if (one.config != last) {
      EXPECT_LE(one.estimate_us, 1.3 * all.front().estimate_us);
    }
  }
  const auto beyond = [&](double within) {
    return listed_for_regret(task, device, last, {.within = within, .most = 100000})
        .shortlist.size();
  };
  EXPECT_LT(beyond(1.05), beyond(1.3));
  EXPECT_EQ(beyond(1000), all.size());
}

TEST(TunerSearch, AWrongCandidateIsReportedAndNeverTimed) {
  SimulatedGpu gpu = gpu_with({10, 5, 9});
  gpu.candidates[1].wrong = "OUT OF TOLERANCE: worst element (3, 4)";
  SimulatedBench bench(gpu);
  const auto result = search(bench, Budget(bench.clock(), kEnough));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->winner, 2);
  EXPECT_THAT(bench.timed, Not(Contains(1)));
  ASSERT_EQ(result->dropped.size(), 1);
  EXPECT_EQ(result->dropped[0].candidate, 1);
  EXPECT_EQ(result->dropped[0].stage, Stage::kVerify);
  EXPECT_THAT(result->dropped[0].why, HasSubstr("worst element (3, 4)"));
}

// Checking everything takes longer than a spot check, so it is for the best.
TEST(TunerSearch, TheWinnerIsVerifiedBesideFewOthers) {
  SimulatedGpu gpu = gpu_with({10, 9, 30, 9.5, 20});
  gpu.noise = gpu.outlier_share = 0;
  SimulatedBench bench(gpu);
  ASSERT_TRUE(search(bench, Budget(bench.clock(), kEnough)));
  EXPECT_THAT(bench.checked, ::testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(bench.verified, ::testing::ElementsAre(0, 1, 3, 4)) << "the next fastest too";
}

// The others race again, with those behind it.
TEST(TunerSearch, AFastCandidateThatIsWrongBetweenTheSamplesMakesRoom) {
  SimulatedGpu gpu = gpu_with({10, 5, 9});
  gpu.candidates[1].wrong_in_between = true;
  SimulatedBench bench(gpu);
  const auto result = search(bench, Budget(bench.clock(), kEnough));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->winner, 2);
  EXPECT_THAT(bench.verified, ::testing::ElementsAre(0, 1, 2));
  ASSERT_EQ(result->dropped.size(), 1);
  EXPECT_EQ(result->dropped[0].why, "between the samples");
}

// The first candidate that passes is wrong between the samples; only a second candidate reveals it.
TEST(TunerSearch, AWrongCandidateThatPassedFirstIsFoundOut) {
  SimulatedGpu gpu = gpu_with({10, 8, 9, 9.5});
  gpu.candidates[0].wrong_in_between = true;
  gpu.candidates[1].wrong_in_between = true;
  const SearchResult result = run(gpu);
  EXPECT_EQ(result.winner, 2);
  ASSERT_EQ(result.dropped.size(), 2);
  for (const Dropped& dropped : result.dropped) {
    EXPECT_LE(dropped.candidate, 1);
    EXPECT_EQ(dropped.stage, Stage::kVerify);
    EXPECT_EQ(dropped.why, "between the samples");
  }
}

TEST(TunerSearch, SpillsAndFailedCompilesDropOutBeforeVerification) {
  SimulatedGpu gpu = gpu_with({10, 5, 6, 9});
  gpu.candidates[1].spill_bytes = 8;
  gpu.candidates[2].compile_error = "ptxas fatal C7602";
  SimulatedBench bench(gpu);
  const auto result = search(bench, Budget(bench.clock(), kEnough));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->winner, 3);
  EXPECT_EQ(result->compiled, 2);
  EXPECT_THAT(bench.checked, Not(Contains(1)));
  EXPECT_THAT(bench.checked, Not(Contains(2)));
  ASSERT_EQ(result->dropped.size(), 2);
  EXPECT_EQ(result->dropped[0].stage, Stage::kSpills);
  EXPECT_EQ(result->dropped[1].stage, Stage::kCompile);
  EXPECT_THAT(result->dropped[1].why, HasSubstr("C7602"));
}

// The default serves without any record, so leaving it out would leave nothing to compare with.
TEST(TunerSearch, ADefaultThatSpillsIsTimedAllTheSame) {
  SimulatedGpu gpu = gpu_with({10, 9});
  gpu.candidates[0].spill_bytes = 16;
  const SearchResult result = run(gpu);
  EXPECT_EQ(result.winner, 1);
  EXPECT_NEAR(result.race.gain, 10 / 9.0, 0.02);
}

TEST(TunerSearch, AWrongDefaultDoesNotWin) {
  SimulatedGpu gpu = gpu_with({5, 9, 10});
  gpu.candidates[0].wrong = "guard zone";
  const SearchResult result = run(gpu);
  EXPECT_EQ(result.winner, 1);
  EXPECT_EQ(result.outcome, Outcome::kTuned);
}

TEST(TunerSearch, WhereNoneIsRightNothingWins) {
  SimulatedGpu gpu = gpu_with({5, 9});
  for (auto& candidate : gpu.candidates) candidate.wrong = "zero";
  const SearchResult result = run(gpu);
  EXPECT_EQ(result.outcome, Outcome::kNoneRight);
  EXPECT_EQ(result.dropped.size(), 2);
}

TEST(TunerSearch, ALostDeviceEndsTheSearchWithItsCandidate) {
  SimulatedGpu gpu = gpu_with({5, 9, 7});
  gpu.lost_at_measurement = 2;  // two first times for each
  SimulatedBench bench(gpu);
  const auto result = search(bench, Budget(bench.clock(), kEnough));
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("candidate 1: cuEventSynchronize"));
}

// From no time at all to more than is needed.
TEST(TunerSearch, TheBudgetIsKept) {
  for (const double seconds : {0.0, 0.01, 0.1, 0.3, 0.5, 0.8, 1.2, 2.0, 5.0}) {
    SimulatedGpu gpu = random_gpu(5);
    gpu.candidates[7].compile_seconds = 100;  // this candidate is never ready
    SimulatedBench bench(gpu);
    const tuner::Clock clock = bench.clock();
    const double began = clock();
    const auto result = search(bench, Budget(clock, seconds));
    ASSERT_TRUE(result);
    // One candidate may still be in verification when time is up.
    EXPECT_LE(clock() - began, seconds + gpu.verify_seconds + 2 * gpu.measurement_seconds)
        << seconds;
    if (result->outcome == Outcome::kOutOfTime) {
      EXPECT_EQ(result->winner, 0);
    }
    if (seconds >= 2) {
      EXPECT_NE(result->outcome, Outcome::kOutOfTime) << seconds;
    }
    if (seconds == 0) {
      EXPECT_EQ(result->outcome, Outcome::kOutOfTime);
    }
  }
}

// Others have the device for half of each second.
TEST(TunerSearch, TheDeviceIsItsOwnWhileItRunsThereAndFreeWhileItWaitsForACompiler) {
  SimulatedBench bench(random_gpu(3));
  bench.others_have_it = [](double now) { return now - std::floor(now) < 0.5; };
  const auto result = search(bench, Budget(bench.clock(), kEnough));
  ASSERT_TRUE(result);
  EXPECT_NE(result->outcome, Outcome::kOutOfTime);
  EXPECT_EQ(bench.used_without_it, 0);
  EXPECT_FALSE(bench.waited_without_it.empty());
}

TEST(TunerSearch, WhoNeverGetsTheDeviceEndsWithTheBudget) {
  SimulatedBench bench(random_gpu(3));
  bench.others_have_it = [](double) { return true; };
  const tuner::Clock clock = bench.clock();
  const double began = clock();
  const auto result = search(bench, Budget(clock, 2));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->outcome, Outcome::kOutOfTime);
  EXPECT_TRUE(bench.timed.empty());
  EXPECT_LE(clock() - began, 2.1);
}

// There is time only for a short final, so the first times decide who enters it.
TEST(TunerSearch, AShortBudgetIsSpentOnTheFinal) {
  for (std::uint64_t seed = 1; seed <= kSeeds / 4; ++seed) {
    std::vector<double> times(16, 10.5);
    times[15] = 9;
    SimulatedGpu gpu = gpu_with(times, seed);
    gpu.outlier_share = 0;  // two outliers in ten blocks would leave the default
    for (auto& candidate : gpu.candidates) candidate.compile_seconds = 0.01;
    EXPECT_EQ(run(gpu, 0.85).winner, 15) << seed;
  }
}

TEST(TunerSearch, DriftDoesNotChangeTheDecision) {
  for (std::uint64_t seed = 1; seed <= kSeeds / 4; ++seed) {
    for (const double drift : {-0.2, -0.02, 0.02, 0.2}) {  // per second
      SimulatedGpu gpu = gpu_with({10, 10.4, 9.7, 12, 10.1, 9.95, 10.2}, seed);
      gpu.drift_per_second = drift;
      gpu.sway = 0.03;
      EXPECT_EQ(run(gpu).winner, 2) << "seed " << seed << ", drift " << drift;
    }
  }
}

TEST(TunerSearch, ThrottledLapsAreRepeated) {
  // While throttled, this device makes even candidates look slow; 2 is the best.
  SimulatedGpu gpu = gpu_with({10, 9.8, 9.0, 9.5, 9.9, 10, 10});
  gpu.throttled_from = 100.35;
  gpu.throttled_to = 100.55;
  const SearchResult result = run(gpu);
  EXPECT_EQ(result.winner, 2);
  EXPECT_GT(result.race.throttled_repeated, 0);
  EXPECT_EQ(result.race.throttled_kept, 0);
  EXPECT_FALSE(result.race.conditions.throttled);
}

TEST(TunerSearch, ADeviceThatNeverCoolsDownIsTimedAndSaidSo) {
  SimulatedGpu gpu = gpu_with({10, 9});
  gpu.throttled_from = 0;
  const SearchResult result = run(gpu);
  EXPECT_GT(result.race.throttled_kept, 0);
  EXPECT_TRUE(result.race.conditions.throttled);
}

TEST(TunerSearch, ConditionsAreTheMediansOfWhatTheDeviceSaid) {
  const SearchResult result = run(gpu_with({10, 9}));
  EXPECT_EQ(result.race.conditions.sm_clock_mhz, 1800);
  EXPECT_EQ(result.race.conditions.power_watts, 500);
}

// While the first is timed, the others compile, so the total takes hardly longer than compiling.
TEST(TunerSearch, TimesWhileOthersCompile) {
  SimulatedGpu gpu = random_gpu(9);
  gpu.cores = 2;
  SimulatedBench bench(gpu);
  const tuner::Clock clock = bench.clock();
  const double began = clock();
  ASSERT_TRUE(search(bench, Budget(clock, kEnough)));
  const double compiling = 16 * 0.2 / 2;
  const double checking = 16 * (gpu.verify_seconds + 2 * gpu.measurement_seconds);
  const double racing = (bench.measurements - 2 * 16) * gpu.measurement_seconds;
  EXPECT_LT(clock() - began, compiling + racing + checking / 2);
}

}  // namespace
}  // namespace octile::tuner
