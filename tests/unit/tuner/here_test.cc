// Searches where the library runs: plans of a device that is a name, and a decider without a GPU.
#include "runtime/tuner/here.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "runtime/compiler/nvrtc.h"
#include "tests/support/api_handles.h"

namespace octile::tuner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// No record has this shape.
const std::string kUnknown =
    "gemm m=? n=136 k=2944 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";

// Common parts of the deciders of a test. The second configuration of the shortlist wins.
struct Judge {
  std::atomic<int> asked = 0;
  std::shared_ptr<std::atomic<double>> now = std::make_shared<std::atomic<double>>(100.0);
  double seconds = 1;            // that a decision takes
  std::int64_t too_large = 0;    // a count for which the device has no memory
  std::function<void()> before;  // called before each decision
};

class QuickDecider final : public Decider {
 public:
  explicit QuickDecider(Judge& judge) : judge_(judge) {}
  void expect(const TuningTask&) override {}
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override {
    if (judge_.before) judge_.before();
    ++judge_.asked;
    *judge_.now += judge_.seconds;
    if (task.tokens == judge_.too_large) return fail(ErrorCode::kOutOfMemory, "no memory");
    Decision decision;
    decision.task = task;
    if (budget.left() <= 0) return decision;
    const DeviceSpec& device = *find_device("h200");
    const auto list = explore(task, device, {.liked = 2, .different = 0}).shortlist;
    decision.outcome = Outcome::kTuned;
    decision.record = record_key(task, device);
    decision.record.winner.config = octile::to_text(list.at(1).config);
    decision.record.gain = 1.1;
    return decision;
  }

 private:
  Judge& judge_;
};

class TuneHereTest : public ::testing::Test {
 protected:
  std::unique_ptr<Library> library(bool with_folder = true) {
    LibraryOptions options;
    if (with_folder) options.engine.writable_root = folder.path() + "/root";
    options.compile_threads = 2;
    options.log_level = LogLevel::kDebug;
    return std::make_unique<Library>(std::move(options));
  }
  static std::shared_ptr<Plan> plan_of(Library& library, const std::string& text = kUnknown) {
    return *Plan::create(library, *parse_problem(text), *resolve_target("h200"));
  }
  PlanTuning tuning(std::optional<double> seconds = 60) {
    PlanTuning made;
    made.seconds = seconds;
    made.make_decider = [this]() -> Result<std::unique_ptr<Decider>> {
      return std::make_unique<QuickDecider>(judge);
    };
    made.clock = [now = judge.now] { return now->load(); };
    return made;
  }
  static std::vector<std::int64_t> counts_of(const std::vector<TuningTask>& tasks) {
    std::vector<std::int64_t> counts;
    for (const TuningTask& task : tasks) counts.push_back(task.tokens);
    return counts;
  }
  std::vector<cache::TuningRecord> kept() const {
    return cache::TuningFile(folder.path() + "/root", true).read()->records;
  }
  // The choice that serves a bucket: "exact record tile=...".
  static std::string served(const Plan& plan, std::int64_t tokens) {
    const auto bucket = static_cast<std::size_t>(bucket_of(tokens));
    for (const Plan::Description& kernel : plan.kernels())
      if (kernel.buckets.test(bucket) && kernel.chosen_by.at(bucket))
        return fmt::format("{} {}", name_of(*kernel.chosen_by.at(bucket)),
                           octile::to_text(kernel.kernel->config));
    return "nothing";
  }

  test::TempFolder folder;
  Judge judge;
};

TEST_F(TuneHereTest, EachBucketWithoutAnExactRecordIsAQuestion) {
  const auto own = library();
  const auto plan = plan_of(*own), same = plan_of(*own);
  const std::vector<Plan::Range> ranges{{plan.get(), 50, 300}, {same.get(), 384, 384}};
  EXPECT_THAT(counts_of(open_tasks(*own, ranges)), ElementsAre(384, 256, 192, 128, 64));
  ASSERT_TRUE(tune_plans(*own, ranges, tuning(2.5)));
  EXPECT_EQ(judge.asked, 3) << "within the budget, and one that ran out of it";
  ASSERT_EQ(kept().size(), 2U);
  EXPECT_EQ(kept()[0].bucket, 384);
  EXPECT_THAT(counts_of(open_tasks(*own, ranges)), ElementsAre(192, 128, 64));
  const auto next_process = library();
  const auto theirs = plan_of(*next_process);
  const Plan::Range range{theirs.get(), 256, 300};
  EXPECT_TRUE(open_tasks(*next_process, {&range, 1}).empty());
}

TEST_F(TuneHereTest, WithoutAFolderDecisionsLastAsLongAsTheLibrary) {
  const auto own = library(false);
  const auto plan = plan_of(*own);
  const Plan::Range range{plan.get(), 64, 64};
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, tuning()));
  EXPECT_TRUE(open_tasks(*own, {&range, 1}).empty());
  const Choice choice =
      choose_config(plan->problem(), 64, plan->target().spec, *own->engine.records());
  EXPECT_EQ(choice.by, ChosenBy::kRecord);
  EXPECT_THAT(choice.reason, HasSubstr(kKeptOrigin));
}

TEST_F(TuneHereTest, ASetThatIsLoadedServesInPlaceOfTheFiles) {
  const auto own = library();
  const auto plan = plan_of(*own);
  const Plan::Range range{plan.get(), 64, 64};
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, tuning()));
  own->engine.tuning_records().load(std::vector<cache::TuningRecord>{});
  EXPECT_EQ(open_tasks(*own, {&range, 1}).size(), 1U);
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, tuning()));
  EXPECT_EQ(judge.asked, 1) << "the folder's record is taken";
  own->engine.tuning_records().load(std::nullopt);
  EXPECT_TRUE(open_tasks(*own, {&range, 1}).empty());
}

TEST_F(TuneHereTest, ThreadsAndProcessesDecideEachQuestionOnce) {
  judge.before = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  const auto work = [&] {
    const auto own = library();
    const auto plan = plan_of(*own);
    const Plan::Range range{plan.get(), 1, 64};
    EXPECT_TRUE(tune_plans(*own, {&range, 1}, tuning(1000)));
    EXPECT_TRUE(open_tasks(*own, {&range, 1}).empty());
  };
  std::thread other(work), third(work);
  work();
  other.join();
  third.join();
  EXPECT_EQ(judge.asked, 7);
  EXPECT_EQ(kept().size(), 7U);
}

// The records that the library serves from are read before the search begins.
TEST_F(TuneHereTest, WhatARunThatSharesTheFolderHasDecidedIsTaken) {
  const auto own = library();
  const auto plan = plan_of(*own);
  const cache::TuningFile of_rank =
      cache::TuningFile::of_rank(folder.path() + "/root", true, "node-gpu0");
  const auto decide_there = [&](std::int64_t tokens) {
    cache::TuningRecord record =
        record_key({with_dynamic_tokens(plan->problem()), tokens}, plan->target().spec);
    record.winner.config =
        octile::to_text(default_config(plan->problem(), tokens, plan->target().spec));
    ASSERT_TRUE(of_rank.append(record));
  };
  judge.before = [&] {
    if (judge.asked == 0) decide_there(16);
  };
  const Plan::Range range{plan.get(), 16, 64};
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, tuning()));
  EXPECT_EQ(judge.asked, 2) << "64 and 32";
  EXPECT_EQ(kept().size(), 2U);
  EXPECT_TRUE(open_tasks(*own, {&range, 1}).empty());
}

// Another process is deciding the question.
TEST_F(TuneHereTest, WhoWaitsForATurnEndsWithItsBudgetOrByACancellation) {
  const auto own = library();
  const auto plan = plan_of(*own);
  const Plan::Range range{plan.get(), 64, 64};
  const cache::TuningRecord question =
      record_key(open_tasks(*own, {&range, 1}).at(0), plan->target().spec);
  cache::SharedTuning other(folder.path() + "/root", {.rank = "other"});
  ASSERT_EQ(other.take(question), cache::SharedTuning::Taken::kMine);
  PlanTuning with_time = tuning(0.03);
  with_time.clock = steady_clock();
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, with_time));
  RunOptions options;
  int asked_to_stop = 0;
  options.stopped = [&] { return ++asked_to_stop > 8; };
  const auto result = tune_here(*own, plan->target().spec, open_tasks(*own, {&range, 1}),
                                tuning().make_decider, {folder.path() + "/root", {}}, options);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(judge.asked, 0);
  other.let_go();
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, tuning()));
  EXPECT_EQ(judge.asked, 1);
}

// Another thread searches with the same handle until `waiting` has ended.
TEST_F(TuneHereTest, WhoWaitsForASearchOfTheHandleEndsWithItsBudgetOrByACancellation) {
  const auto own = library(false);
  const auto plan = plan_of(*own);
  const Plan::Range range{plan.get(), 64, 64};
  std::promise<void> searching, ended;
  judge.before = [&] {
    searching.set_value();
    ended.get_future().wait();
  };
  std::thread other([&] { EXPECT_TRUE(tune_plans(*own, {&range, 1}, tuning())); });
  searching.get_future().wait();
  Judge theirs;
  const MakeDecider make = [&]() -> Result<std::unique_ptr<Decider>> {
    return std::make_unique<QuickDecider>(theirs);
  };
  const auto tasks = open_tasks(*own, {&range, 1});
  RunOptions options;
  options.budget_seconds = 0.05;
  const auto by_budget = tune_here(*own, plan->target().spec, tasks, make, {}, options);
  ASSERT_TRUE(by_budget);
  EXPECT_EQ(by_budget->undecided, 1);
  options.budget_seconds.reset();
  int asked_to_stop = 0;
  options.stopped = [&] { return ++asked_to_stop > 8; };
  const auto by_stop = tune_here(*own, plan->target().spec, tasks, make, {}, options);
  ASSERT_TRUE(by_stop);
  EXPECT_TRUE(by_stop->stopped);
  EXPECT_EQ(theirs.asked, 0);
  ended.set_value();
  other.join();
  EXPECT_EQ(judge.asked, 1);
}

// Another search of the handle takes 40 s of the clock. The tasks' needs are for their search, and
// seconds that the caller names are all that it takes.
TEST_F(TuneHereTest, WaitingForTheHandleCountsAgainstSecondsThatTheCallerNamesAlone) {
  for (const std::optional<double> named : {std::optional<double>(), std::optional(100.0)}) {
    const auto own = library(false);
    const auto plan = plan_of(*own);
    const Plan::Range range{plan.get(), 64, 64};
    const auto tasks = open_tasks(*own, {&range, 1});
    RunOptions options;
    options.budget_seconds = named;
    std::atomic<int> looks = 0;  // at the clock: before the first try, and behind it
    options.clock = [&] {
      ++looks;
      return judge.now->load();
    };
    std::optional<RunPlan> planned;
    options.planned = [&](const RunPlan& plan_of_run) { planned = plan_of_run; };
    std::promise<void> searching;
    std::thread other([&] {
      const std::scoped_lock turn(own->search_turn);
      searching.set_value();
      while (looks < 2) std::this_thread::yield();
      *judge.now += 40;
    });
    searching.get_future().wait();
    const auto result =
        tune_here(*own, plan->target().spec, tasks, tuning().make_decider, {}, options);
    other.join();
    ASSERT_TRUE(result) << result.error().message;
    ASSERT_TRUE(planned);
    EXPECT_NEAR(planned->budget_seconds, named ? 60 : planned->needed_seconds, 1e-9);
  }
}

TEST_F(TuneHereTest, ACancellationKeepsWhatIsDecided) {
  const auto own = library();
  const auto plan = plan_of(*own);
  const Plan::Range range{plan.get(), 1, 64};
  RunOptions options;
  options.stopped = [this] { return judge.asked >= 2; };
  const auto result =
      tune_here(*own, plan->target().spec, open_tasks(*own, {&range, 1}), tuning().make_decider,
                {folder.path() + "/root",
                 [&](const cache::TuningRecord& record) {
                   return own->engine.tuning_records().keep(record);
                 }},
                options);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->undecided, 6);
  EXPECT_EQ(kept().size(), 1U) << "the second was under way";
}

TEST_F(TuneHereTest, AQuestionThatIsTooLargeStaysUndecidedAndTheOthersGoOn) {
  judge.too_large = 64;
  const auto own = library();
  const auto plan = plan_of(*own);
  const Plan::Range range{plan.get(), 32, 64};
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, tuning()));
  EXPECT_THAT(counts_of(open_tasks(*own, {&range, 1})), ElementsAre(64));
}

TEST_F(TuneHereTest, WhatNoSearchHasOperandsForIsNoQuestion) {
  const auto own = library();
  const auto amax = plan_of(*own, "amax rows=? cols=7168 x=fp32 q=e4m3:tensor");
  const auto empty =
      plan_of(*own, "gemm m=? n=0 k=128 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128");
  const std::vector<Plan::Range> ranges{{amax.get(), 64, 64}, {empty.get(), 64, 64}};
  EXPECT_TRUE(open_tasks(*own, ranges).empty());
}

// ---- kernels, which a real NVRTC compiles

class TunedPlanTest : public TuneHereTest {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
  }
};

TEST_F(TunedPlanTest, BucketsThatWerePreparedGetTheWinner) {
  const auto own = library();
  const auto plan = plan_of(*own);
  ASSERT_TRUE(plan->prepare(64, 64, false));
  EXPECT_THAT(served(*plan, 64), HasSubstr("cost model "));
  const Plan::Range range{plan.get(), 64, 64};
  ASSERT_TRUE(tune_plans(*own, {&range, 1}, tuning()));
  ASSERT_TRUE(plan->prepare(64, 64, false));
  EXPECT_EQ(served(*plan, 64), "exact record " + kept().at(0).winner.config);
}

TEST_F(TunedPlanTest, InTheBackgroundTheGenericKernelServesUntilTheWinnerFollows) {
  std::promise<void> may_decide;
  judge.before = [decided = may_decide.get_future().share()] { decided.wait(); };
  const auto own = library();
  const auto plan = plan_of(*own);
  ASSERT_TRUE(plan->prepare(64, 64, true));
  tune_plan_later(*own, {plan.get(), 64, 64}, tuning());
  EXPECT_THAT(served(*plan, 64), HasSubstr("cost model "));
  may_decide.set_value();
  ASSERT_TRUE(plan->wait());
  EXPECT_EQ(served(*plan, 64), "exact record " + kept().at(0).winner.config);
}

TEST_F(TuneHereTest, DestroyingAPlanEndsItsSearch) {
  std::promise<void> began, destroyed;
  judge.before = [&, gone = destroyed.get_future().share()] {
    if (judge.asked == 0) began.set_value();
    gone.wait();
  };
  const auto own = library();
  auto plan = plan_of(*own);
  tune_plan_later(*own, {plan.get(), 1, 4096}, tuning(1000));
  began.get_future().wait();
  plan.reset();
  destroyed.set_value();
  own->searches.run(1, [](std::size_t) {});  // once the search has ended
  EXPECT_EQ(judge.asked, 1);
}

}  // namespace
}  // namespace octile::tuner
