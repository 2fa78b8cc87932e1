// The promotion intervals of `octile tune --max-error`: which are searched and which answers.
#include "tools/tune/intervals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "runtime/families/families.h"
#include "tools/tune/report.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kPerRow =
    "gemm m=? n=512 k=1024 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=128";
constexpr const char* kBlocks =
    "gemm m=? n=512 k=1024 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
constexpr const char* kQuantizer = "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row";

std::string promote_of(const Problem& problem) {
  return promote_text(problem_as<GemmProblem>(problem)->promote);
}

Question question(const char* text) { return {{*parse_problem(text), 64}, "mlp.up", 3}; }

Intervals measured(const std::vector<Question>& asked, std::map<std::string, double> errors,
                   double max_error) {
  const auto measure = [&](const std::vector<tuner::TuningTask>& tasks) {
    std::vector<double> all;
    for (const tuner::TuningTask& task : tasks) all.push_back(errors.at(promote_of(task.problem)));
    return Result<std::vector<double>>(all);
  };
  return *Intervals::measured(asked, *find_device("h200"), max_error, measure);
}

std::vector<std::string> searched(const Intervals& intervals, const std::vector<Question>& asked) {
  std::vector<std::string> all;
  for (const Question& one : intervals.searched(asked)) {
    const bool is_gemm = problem_as<GemmProblem>(one.task.problem) != nullptr;
    all.push_back(is_gemm ? promote_of(one.task.problem) : "quantize");
    EXPECT_EQ(one.layers, 3);
  }
  return all;
}

const std::map<std::string, double> kErrors{
    {"128", 0.004}, {"256", 0.008}, {"512", 0.016}, {"none", 0.3}};

TEST(TuneIntervals, OthersAreSearchedWithinTheErrorAndTheAskedOneAnyway) {
  const std::vector<Question> asked{question(kPerRow), question(kQuantizer)};
  EXPECT_THAT(searched(measured(asked, kErrors, 0.01), asked),
              ElementsAre("128", "quantize", "256"));
  EXPECT_THAT(searched(measured(asked, kErrors, 0.001), asked), ElementsAre("128", "quantize"));
  const Intervals all = measured(asked, kErrors, 1);
  EXPECT_THAT(searched(all, asked), ElementsAre("128", "quantize", "256", "512", "none"));
  EXPECT_EQ(all.error_of(asked.front().task), 0.004);
  EXPECT_FALSE(all.error_of(asked.back().task));
}

// Both are asked, so that neither is searched twice.
TEST(TuneIntervals, AnIntervalIsSearchedOnce) {
  std::vector<Question> asked{question(kPerRow), question(kPerRow)};
  GemmProblem longer = *problem_as<GemmProblem>(asked.back().task.problem);
  longer.promote = 256;
  asked.back().task.problem = longer;
  EXPECT_THAT(searched(measured(asked, kErrors, 1), asked),
              ElementsAre("128", "256", "512", "none"));
}

TEST(TuneIntervals, TheSupportMatrixSaysWhichExist) {
  const auto promotes = [](const char* text) {
    std::vector<std::string> all;
    for (const Problem& other : with_other_intervals(*parse_problem(text)))
      all.push_back(promote_of(other));
    return all;
  };
  EXPECT_THAT(promotes(kPerRow), ElementsAre("256", "512", "none"));
  EXPECT_THAT(promotes(kBlocks), ElementsAre("32", "64"));
  EXPECT_THAT(promotes("gemm m=? n=512 k=1024 a=e4m3:1x32:e8m0 b=e4m3:1x32:e8m0 d=bf16 acc=0 "
                       "promote=32"),
              ElementsAre("none"));  // of GPUs whose instruction multiplies the scales
  EXPECT_THAT(with_other_intervals(*parse_problem(kQuantizer)), ElementsAre());
}

// Returns the intervals of rows as text: the one that answers has its result in words.
tuner::RunResult run_of(const Intervals& intervals, const std::vector<Question>& asked,
                        const std::map<std::string, double>& times) {
  tuner::RunResult result;
  for (const Question& one : intervals.searched(asked)) {
    tuner::Decision& decision = result.decisions.emplace_back();
    decision.task = one.task;
    const auto us = times.find(promote_of(one.task.problem));
    if (us == times.end()) continue;
    decision.outcome = tuner::Outcome::kTuned;
    decision.record.winner.median_us = us->second;
  }
  return result;
}

std::string answer(double max_error, const std::map<std::string, double>& times) {
  const std::vector<Question> asked{question(kPerRow)};
  const Intervals intervals = measured(asked, kErrors, max_error);
  std::string answers;
  for (const Intervals::Row& row : intervals.rows(run_of(intervals, asked, times)))
    if (row.answers) answers += row.result;
  return answers;
}

TEST(TuneIntervals, TheFastestWithinTheErrorAnswers) {
  EXPECT_EQ(answer(0.01, {{"128", 10}, {"256", 9}}), "ask for promote=256");
  EXPECT_EQ(answer(1, {{"128", 10}, {"256", 9}, {"512", 9.5}, {"none", 8}}),
            "ask for promote=none");
  EXPECT_EQ(answer(0.01, {{"128", 10}, {"256", 9.95}}), "ask for promote=128") << "within 1 %";
  EXPECT_EQ(answer(0.01, {{"256", 9}}), "") << "the asked one is undecided";
  EXPECT_EQ(answer(0.001, {{"128", 10}}), "ask for promote=128: error above 0.001");
}

// A longer interval that is asked for is too inexact; one of its own sums is not.
TEST(TuneIntervals, AnAskedIntervalAboveTheErrorGivesWayToASlowerOne) {
  std::vector<Question> asked{question(kPerRow)};
  GemmProblem whole = *problem_as<GemmProblem>(asked.front().task.problem);
  whole.promote = kPromoteNone;
  asked.front().task.problem = whole;
  const Intervals intervals = measured(asked, kErrors, 0.01);
  const auto rows =
      intervals.rows(run_of(intervals, asked, {{"none", 8}, {"128", 10}, {"256", 9}}));
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[0].result, "error above 0.01");
  EXPECT_EQ(rows[2].result, "ask for promote=256");
  EXPECT_DOUBLE_EQ(rows[2].gain, 8.0 / 9);
  EXPECT_EQ(rows[3].result, "error above 0.01, not searched");
  const Json json = to_json(rows);
  EXPECT_EQ(json.at(2).at("promote"), "256");
  EXPECT_EQ(json.at(2).at("answers"), true);
  EXPECT_TRUE(json.at(3).at("us").is_null());
}

TEST(TuneIntervals, ARecordNamesTheIntervalAndItsError) {
  tuner::Decision decision;
  decision.task = question(kPerRow).task;
  const Record record = record_of(decision, {}, 0.004);
  EXPECT_EQ(record.details.at("promote"), "128");
  EXPECT_EQ(record.details.at("error"), 0.004);
  EXPECT_FALSE(record_of(decision, {}).details.contains("error"));
}

// The other interval of MX is that of GPUs whose instruction multiplies the scales.
TEST(TuneIntervals, AGpuHasToHaveAnother) {
  const auto measure = [](const std::vector<tuner::TuningTask>& tasks) {
    return Result<std::vector<double>>(std::vector<double>(tasks.size(), 0.001));
  };
  const std::vector<Question> asked{
      question("gemm m=? n=512 k=1024 a=e4m3:1x32:e8m0 b=e4m3:1x32:e8m0 d=bf16 acc=0 promote=32")};
  const auto refused = Intervals::measured(asked, *find_device("h200"), 0.01, measure);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("interval to search on NVIDIA H200"));
  EXPECT_TRUE(Intervals::measured(asked, *find_device("rtx5090"), 0.01, measure));
}

TEST(TuneIntervals, ALeastErrorThatIsNoneIsRefused) {
  const std::vector<Question> asked{question(kPerRow)};
  EXPECT_TRUE(check_max_error(std::nullopt, {}));
  EXPECT_TRUE(check_max_error(1, asked));
  for (const auto& [value, text] :
       std::map<double, std::string>{{0, "0"}, {-0.5, "-0.5"}, {1.5, "1.5"}}) {
    const Status refused = check_max_error(value, asked);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message,
                HasSubstr("--max-error is " + text + "; allowed: a share of the sum of"));
  }
  EXPECT_THAT(check_max_error(std::nan(""), asked).error().message, HasSubstr("is nan; allowed"));
  EXPECT_THAT(check_max_error(0.5, {question(kQuantizer)}).error().message,
              HasSubstr("--max-error is 0.5, and no problem has another promotion interval"));
}

}  // namespace
}  // namespace octile::tools
