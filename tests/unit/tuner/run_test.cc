// A list of tasks within a budget, on simulated devices: which results are kept, resumed and given
// up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "generator/families.h"
#include "runtime/engine/choice.h"
#include "runtime/engine/engine.h"
#include "runtime/tuner/run.h"
#include "tests/support/api_handles.h"
#include "tests/support/simulated_gpu.h"

namespace octile::tuner {
namespace {

using test::SimulatedBench;
using test::SimulatedGpu;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const DeviceSpec& h200() { return *find_device("h200"); }

TuningTask task(std::int64_t tokens, std::int64_t n = 7168) {
  GemmProblem problem;
  problem.n = n;
  problem.k = 2048;
  return {problem, tokens};
}

// Every task has the same simulated device. Its third candidate is 10 % faster than the default,
// except for even token counts, where no candidate is faster.
class SimulatedDecider final : public Decider {
 public:
  void expect(const TuningTask& q) override { expected.push_back(q.tokens); }
  void foresee(const TuningTask& q) override { foreseen.push_back(q.tokens); }

  Result<Decision> decide(const TuningTask& q, const Budget& budget) override {
    asked.push_back(q.tokens);
    *now += waits;
    waited += waits;
    if (std::exchange(short_once, short_once == q.tokens ? 0 : short_once) == q.tokens) {
      Decision decision;
      decision.task = q;
      return decision;
    }
    if (q.tokens == too_large_at) return fail(ErrorCode::kOutOfMemory, "asked for 30 GB");
    if (q.tokens == breaks_at) return fail(ErrorCode::kDeviceError, "the device is lost");
    SimulatedGpu gpu;
    gpu.seed = static_cast<std::uint64_t>(q.tokens);
    const Exploration exploration = explore(q, h200(), {.liked = 4, .different = 0});
    for (int i = 0; i < 4; ++i)
      gpu.candidates.emplace_back().us = i == 2 && q.tokens % 2 == 1 ? 9.0 : 10.0;
    if (q.tokens == wrong_at) gpu.candidates[1].wrong = "zero";
    SimulatedBench bench(gpu, now);
    const auto result = search(bench, budget);
    if (stop_after == q.tokens) stopped = true;
    return decision_of(q, h200(), exploration, *result, 42);
  }

  double seconds_waited() const override { return waited; }
  void learn(const cache::TuningRecord& record) override { learned.push_back(record.tokens); }

  std::vector<std::int64_t> asked, expected, foreseen, learned;
  std::int64_t breaks_at = 0, too_large_at = 0, stop_after = 0, wrong_at = 0, short_once = 0;
  double waits = 0, waited = 0;  // for its device, before each decision
  bool stopped = false;
  std::shared_ptr<double> now = std::make_shared<double>(100.0);
};

class TunerRunTest : public ::testing::Test {
 protected:
  RunOptions options(double seconds = 60) {
    RunOptions made;
    made.budget_seconds = seconds;
    made.clock = [now = decider.now] { return *now; };
    made.stopped = [this] { return decider.stopped; };
    return made;
  }
  // Runs as a process of its own, which shares the folder with those before it.
  RunResult run(const std::vector<TuningTask>& tasks, RunOptions how, bool force = false) {
    cache::SharedTuning shared(folder.path() + "/root", {.rank = "test", .force = force});
    how.shared = &shared;
    const auto result = run_tasks(tasks, h200(), decider, how);
    EXPECT_TRUE(result) << result.error().message;
    return *result;
  }
  std::size_t kept() const { return file.read()->records.size(); }

  test::TempFolder folder;
  cache::TuningFile file = cache::TuningFile::of_rank(folder.path() + "/root", true, "test");
  SimulatedDecider decider;
};

TEST_F(TunerRunTest, DecidesAndKeepsEveryTask) {
  const auto result = run({task(63), task(64), task(127)}, options());
  EXPECT_THAT(decider.asked, ElementsAre(63, 64, 127));
  EXPECT_THAT(decider.expected, ElementsAre(63, 64, 127)) << "each ahead of its turn, once";
  EXPECT_EQ(result.undecided, 0);
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.decisions[0].outcome, Outcome::kTuned);
  EXPECT_EQ(result.decisions[1].outcome, Outcome::kDefaultStays);
  ASSERT_EQ(kept(), 3);
  const cache::TuningRecord record = file.read()->records[0];
  EXPECT_EQ(record.tokens, 63);
  EXPECT_EQ(record.bucket, 64);
  EXPECT_EQ(record.device, "h200");
  EXPECT_THAT(record.problem, HasSubstr("gemm m=? n=7168 k=2048"));
  EXPECT_NEAR(record.gain, 10 / 9.0, 0.01);
  EXPECT_GT(record.noise, 0);
  const auto list = explore(task(63), h200(), {.liked = 4, .different = 0}).shortlist;
  const auto text_of = [](const KernelConfig& c) { return to_text(std::get<GemmConfig>(c)); };
  EXPECT_EQ(record.winner.config, text_of(list[2].config));
  ASSERT_TRUE(record.default_config);
  EXPECT_EQ(record.default_config->config, text_of(list[0].config));
  EXPECT_LT(record.winner.median_us, record.default_config->median_us);
  EXPECT_LE(record.winner.low_us, record.winner.median_us);
  ASSERT_TRUE(record.runner_up);
  EXPECT_GT(record.counts.enumerated, record.counts.admitted);
  EXPECT_EQ(record.counts.timed, 4);
}

TEST_F(TunerRunTest, TasksBehindTheNextAreForeseenOnce) {
  std::vector<TuningTask> tasks;
  for (std::int64_t tokens = 1; tokens <= 40; ++tokens) tasks.push_back(task(tokens));
  decider.stop_after = 2;
  run(tasks, options(1000));
  ASSERT_EQ(decider.foreseen.size(), 33) << "32 behind the next, and one more for each decision";
  for (std::size_t i = 0; i < decider.foreseen.size(); ++i)
    EXPECT_EQ(decider.foreseen[i], static_cast<std::int64_t>(i) + 3);
}

TEST_F(TunerRunTest, AQuantisersRecordIsTakenByPlansAndResumed) {
  const Problem problem = *parse_problem("quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=both");
  const auto first = run({{problem, 4095}, task(63)}, options());
  ASSERT_EQ(first.decisions[0].outcome, Outcome::kTuned);
  const auto records = file.read()->records;
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[0].family, "quantize");
  EXPECT_EQ(records[0].problem, to_text(problem));
  EXPECT_EQ(records[0].bucket, 4096);
  EXPECT_EQ(records[1].family, "gemm");

  cache::TuningSet known;
  known.add({records[0]}, "here");
  const Choice choice = choose_config(problem, 4095, h200(), known);
  EXPECT_EQ(choice.by, ChosenBy::kRecord) << choice.reason;
  EXPECT_EQ(to_text(choice.config), records[0].winner.config);
  EXPECT_NE(choice.config, default_config(problem, 4095, h200()));

  run({{problem, 4095}}, options());
  EXPECT_THAT(decider.asked, ElementsAre(4095, 63)) << "it was known";
}

TEST_F(TunerRunTest, ResumesWhereItStopped) {
  const std::vector<TuningTask> all{task(63), task(64), task(127)};
  decider.stop_after = 64;
  const auto first = run(all, options());
  EXPECT_TRUE(first.stopped);
  EXPECT_EQ(first.undecided, 1) << "64 was decided when the stop came, 127 never asked";
  EXPECT_EQ(kept(), 2);

  decider = SimulatedDecider();
  const auto second = run(all, options());
  EXPECT_THAT(decider.asked, ElementsAre(127));
  EXPECT_THAT(second.resumed, ElementsAre(true, true, false));
  EXPECT_EQ(second.undecided, 0);
  EXPECT_EQ(second.decisions[0].outcome, Outcome::kTuned);
  EXPECT_EQ(second.decisions[1].outcome, Outcome::kDefaultStays);
  EXPECT_EQ(kept(), 3);
}

// The interrupt comes in the middle of a search, and no incomplete result is kept.
TEST_F(TunerRunTest, AStopEndsTheSearchUnderWay) {
  RunOptions how = options();
  how.stopped = [this] { return *decider.now > 100.3; };
  const auto result = run({task(63), task(127)}, how);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.undecided, 2);
  EXPECT_THAT(decider.asked, ElementsAre(63));
  EXPECT_EQ(kept(), 0);
  EXPECT_LT(*decider.now, 100.4);
}

TEST_F(TunerRunTest, ForceAsksAgain) {
  run({task(63)}, options());
  run({task(63)}, options(), true);
  EXPECT_THAT(decider.asked, ElementsAre(63, 63));
  EXPECT_EQ(kept(), 2);
}

TEST_F(TunerRunTest, ARecordOfAnotherCountInTheBucketIsNoAnswer) {
  run({task(63)}, options());
  run({task(61)}, options());
  EXPECT_THAT(decider.asked, ElementsAre(63, 61));
  run({task(63), task(61)}, options());
  EXPECT_THAT(decider.asked, ElementsAre(63, 61)) << "both are known";
}

TEST_F(TunerRunTest, ARecordThatStatesAnotherBucketIsNoAnswer) {
  run({task(301)}, options());
  cache::TuningRecord record = file.read()->records.at(0);
  EXPECT_EQ(record.bucket, 384);
  record.bucket = 512;
  std::filesystem::remove(file.path());
  ASSERT_TRUE(file.append(record));
  run({task(301)}, options());
  EXPECT_THAT(decider.asked, ElementsAre(301, 301));
}

TEST_F(TunerRunTest, ThePlanIsWhatTheOpenTasksNeed) {
  run({task(63)}, options());
  RunOptions how = options();
  how.budget_seconds.reset();
  how.compile_threads = 16;
  std::vector<RunPlan> plans;
  how.planned = [&](const RunPlan& plan) { plans.push_back(plan); };
  const auto result = run({task(63), task(127), task(255), task(4095, 512)}, how);
  ASSERT_EQ(plans.size(), 1);
  EXPECT_EQ(plans[0].tasks, 4);
  EXPECT_EQ(plans[0].open, 3);
  // The second count of a problem has a neighbour whose winner is known.
  const std::vector<NeededSeconds> needs =
      needs_of({task(127), task(255), task(4095, 512)}, *find_device("h200"), {}, 16);
  EXPECT_GT(needs[0].builds, needs[1].builds);
  EXPECT_EQ(needs[0].builds, needs[2].builds);
  EXPECT_EQ(plans[0].needed_seconds, seconds_of_run(needs));
  EXPECT_EQ(plans[0].budget_seconds, plans[0].needed_seconds);
  EXPECT_EQ(result.undecided, 0);
  how.budget_seconds = 1;
  run({task(63), task(127)}, how, true);
  EXPECT_EQ(plans[1].open, 2);
  EXPECT_EQ(plans[1].budget_seconds, 1);
}

TEST_F(TunerRunTest, ACutBudgetDecidesTheFirstTasks) {
  // Enough for compiling the candidates of two, and no more.
  const auto result = run({task(7), task(5), task(9), task(1), task(3)}, options(0.9));
  EXPECT_EQ(result.decisions[0].outcome, Outcome::kTuned);
  EXPECT_EQ(result.decisions[4].outcome, Outcome::kOutOfTime);
  EXPECT_GT(result.undecided, 0);
  EXPECT_LT(result.undecided, 5);
  EXPECT_EQ(kept(), 5U - static_cast<std::size_t>(result.undecided));
  EXPECT_LE(*decider.now, 101.1);
}

TEST_F(TunerRunTest, WhatRanOutOfTimeIsTriedAgainWithWhatIsLeft) {
  decider.short_once = 5;
  const auto result = run({task(7), task(5), task(9)}, options());
  EXPECT_THAT(decider.asked, ElementsAre(7, 5, 9, 5));
  EXPECT_EQ(result.undecided, 0);
  EXPECT_EQ(kept(), 3);
}

// The tasks need a few seconds together, and another process has the device for 100 s each time.
TEST_F(TunerRunTest, WaitingForTheDeviceCountsAgainstSecondsThatTheCallerNamesAlone) {
  decider.waits = 100;
  RunOptions how = options();
  how.budget_seconds.reset();
  EXPECT_EQ(run({task(7), task(5), task(9)}, how).undecided, 0);
  EXPECT_GT(*decider.now, 400);
  EXPECT_EQ(run({task(17), task(15)}, options(60)).undecided, 2);
}

TEST_F(TunerRunTest, TheDeciderLearnsEveryDecisionOnce) {
  run({task(63), task(127)}, options());
  EXPECT_THAT(decider.learned, ElementsAre(63, 127));
  run({task(63), task(255)}, options());
  EXPECT_THAT(decider.learned, ElementsAre(63, 127, 63, 255)) << "that of the file first";
}

TEST_F(TunerRunTest, WhatTheBudgetDoesNotReachStaysUndecided) {
  const auto result = run({task(1), task(3), task(5)}, options(0.1));
  EXPECT_EQ(result.undecided, 3);
  EXPECT_EQ(kept(), 0);
  EXPECT_LE(*decider.now, 100.2);
}

TEST_F(TunerRunTest, WhatFindsNoPlaceOnTheDeviceIsLeftOut) {
  decider.too_large_at = 127;
  const auto result = run({task(63), task(127), task(255)}, options());
  EXPECT_EQ(result.undecided, 1);
  EXPECT_EQ(result.decisions[1].outcome, Outcome::kTooLarge);
  EXPECT_EQ(result.decisions[1].task.tokens, 127);
  EXPECT_THAT(decider.asked, ElementsAre(63, 127, 255)) << "once each";
  EXPECT_EQ(kept(), 2);
}

TEST_F(TunerRunTest, ALostDeviceLosesNothingDecided) {
  decider.breaks_at = 127;
  cache::SharedTuning shared(folder.path() + "/root", {.rank = "test"});
  RunOptions how = options();
  how.shared = &shared;
  const auto result = run_tasks({task(63), task(127), task(255)}, h200(), decider, how);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("the device is lost"));
  EXPECT_EQ(kept(), 1);
}

TEST_F(TunerRunTest, AWrongCandidateIsToldWithAllItTakesToSeeItAgain) {
  decider.wrong_at = 63;
  const auto result = run({task(63)}, options());
  ASSERT_EQ(result.decisions[0].wrong.size(), 1);
  const std::string text = to_text(result.decisions[0].wrong[0]);
  const auto list = explore(task(63), h200(), {.liked = 4, .different = 0}).shortlist;
  for (const std::string& part :
       {std::string("gemm m=? n=7168 k=2048"), std::string("at 63 tokens"), std::string("seed 42"),
        to_text(std::get<GemmConfig>(list[1].config)), std::string("wrong: zero")})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_EQ(result.decisions[0].record.counts.failed_verify, 1);
}

TEST_F(TunerRunTest, RecordsThatCannotBeKeptEndIt) {
  std::ofstream(folder.path() + "/file") << "no folder";
  cache::SharedTuning blocked(folder.path() + "/file", {.rank = "test"});
  RunOptions how = options();
  how.shared = &blocked;
  const auto result = run_tasks({task(63)}, h200(), decider, how);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr(folder.path() + "/file"));
}

TEST_F(TunerRunTest, WithoutAFolderNothingIsKept) {
  const auto result = run_tasks({task(63)}, h200(), decider, options());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->decisions[0].outcome, Outcome::kTuned);
  EXPECT_EQ(kept(), 0);
}

TEST(Floor, IsTheSlowerOfMemoryAndArithmetic) {
  // 64x7168x2048: 64*2048 + 7168*2048 + 2*64*7168 bytes at 4.3 TB/s.
  EXPECT_NEAR(floor_us(task(64), h200()), 15728640.0 / 4.3e6, 1e-6);
  // 8192x7168x2048 at 1979 TFLOP/s.
  EXPECT_NEAR(floor_us(task(8192), h200()), 2.0 * 8192 * 7168 * 2048 / 1979e6, 1e-6);
}

TEST(Floor, OfAQuantiserIsWhatItMoves) {
  const auto floor = [](const char* text) {
    return floor_us({*parse_problem(text), 4096}, h200());
  };
  const double elements = 4096.0 * 7168;
  EXPECT_NEAR(floor("quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=both"), elements * 4 / 4.3e6,
              1e-6);
  EXPECT_NEAR(floor("quantize rows=? cols=7168 x=fp32 q=e4m3:tensor out=row"), elements * 9 / 4.3e6,
              1e-6)
      << "a first pass reads it too";
  EXPECT_NEAR(floor("quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row src=silu_mul"),
              elements * 5 / 4.3e6, 1e-6);
  EXPECT_NEAR(floor("quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row src=dsilu_mul"),
              elements * 4 / 4.3e6, 1e-6)
      << "three inputs of half the columns";
  const double masked = floor("quantize rows=? cols=7168 x=bf16 q=e4m3:row out=row group=masked");
  EXPECT_GT(masked, 8 * elements * 3 / 4.3e6);
  EXPECT_LT(masked, 16 * elements * 3 / 4.3e6) << "of 32 groups of at most this number of rows";
  EXPECT_NEAR(floor("dequantize rows=? cols=7168 x=e4m3:1x128 q=bf16 out=row"),
              elements * 3 / 4.3e6, 1e-6);
}

}  // namespace
}  // namespace octile::tuner
