// octile tune: the parts of --part, and what --devices names.
#include "tools/tune/parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/tuner/run.h"
#include "tools/tune/device_list.h"
#include "tools/tune/tasks.h"

namespace octile::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// GEMMs of several widths, each at every bucket's largest count.
std::vector<Question> questions_of_widths(const std::vector<std::int64_t>& widths) {
  std::vector<Question> questions;
  for (const std::int64_t n : widths) {
    GemmProblem problem;
    problem.n = n;
    problem.k = 2048;
    for (Question& question : questions_of(*tasks_of(Problem(problem), {})))
      questions.push_back(std::move(question));
  }
  return questions;
}

double needed(const std::vector<Question>& questions) {
  double seconds = 0;
  for (const tuner::NeededSeconds& need :
       tuner::needs_of(tasks_of(questions), *find_device("h200"), {}, 16))
    seconds += need.all();
  return seconds;
}

TEST(TuneParts, TogetherHaveEachQuestionOnceAndNeedTheSameTime) {
  const auto all = questions_of_widths({512, 7168, 1024, 24576, 4096});
  for (const std::size_t count : {1U, 2U, 3U, 7U}) {
    std::multiset<std::string> seen;
    double least = 1e9, most = 0;
    std::size_t problems = 0;
    for (std::size_t i = 1; i <= count; ++i) {
      const auto part = questions_of_part(all, {i, count});
      std::set<std::string> texts;
      for (const Question& question : part) {
        seen.insert(to_text(question.task));
        texts.insert(to_text(question.task.problem));
      }
      problems += texts.size();
      least = std::min(least, needed(part));
      most = std::max(most, needed(part));
    }
    EXPECT_EQ(seen.size(), all.size()) << count;
    for (const Question& question : all) EXPECT_EQ(seen.count(to_text(question.task)), 1U);
    EXPECT_LE(problems, 5 + count - 1) << "a part begins within a problem at most";
    // A question needs about a second, and up to four as the first of its problem.
    EXPECT_LT(most - least, 8.0) << count;
  }
}

TEST(TuneParts, MoreThanThereAreQuestionsAreEmpty) {
  auto some = questions_of_widths({512});
  some.resize(3);
  std::size_t questions = 0;
  for (std::size_t i = 1; i <= 50; ++i) questions += questions_of_part(some, {i, 50}).size();
  EXPECT_EQ(questions, 3U);
  EXPECT_TRUE(questions_of_part({}, {1, 2}).empty());
}

TEST(TuneDevices, AreAllOrNumbersEachOnce) {
  EXPECT_FALSE(read_devices("all")->has_value());
  EXPECT_THAT(**read_devices("0"), ElementsAre(0));
  EXPECT_THAT(**read_devices("3,0,12"), ElementsAre(3, 0, 12));
  for (const char* text : {"", ",", "0,", ",0", "a", "0,x", "-1", "0 1", "cuda:0", "all,0", "0..3",
                           "99999999999999999999"}) {
    const auto read = read_devices(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().message,
              std::string("--devices is '") + text +
                  "'; allowed: all, or numbers of GPUs with commas, such as 0,1");
  }
  EXPECT_THAT(read_devices("1,0,1").error().message,
              HasSubstr("'1,0,1', which names GPU 1 twice; allowed: each once"));
}

}  // namespace
}  // namespace octile::tools
