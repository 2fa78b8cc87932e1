// Files of records folded into one: which line stays, and that order and repetition do not matter.
#include "cache/tuning_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cache/tuning_file.h"
#include "cache/tuning_set.h"
#include "tests/support/tuning_testing.h"

namespace octile::cache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kTunedProblem;
using testing::make_decision;
using ::testing::StartsWith;

std::string line(std::int64_t bucket, const std::string& config, const std::string& date,
                 std::int64_t tokens = 0) {
  TuningRecord record = make_decision(kTunedProblem, bucket, config);
  if (tokens > 0) record.tokens = tokens;
  record.date = date;
  return to_json_line(record) + "\n";
}

const std::string kDay1 = "2026-01-01T00:00:00Z";
const std::string kDay2 = "2026-01-02T00:00:00Z";

TEST(TuningMerge, OfTwoFilesTheNewerDecisionStaysAndTheOtherIsNamed) {
  const MergedTuning merged =
      merge_tuning({{"b", line(64, "new", kDay2)}, {"a", "\n" + line(64, "old", kDay1)}});
  EXPECT_EQ(merged.text(), line(64, "new", kDay2));
  EXPECT_THAT(merged.conflicts,
              ElementsAre(AllOf(StartsWith("a:2: other winner than b:1, which is newer and stays"),
                                HasSubstr(kTunedProblem), HasSubstr("64 tokens on h200"))));
  EXPECT_THAT(merged.bad_lines, IsEmpty());
}

TEST(TuningMerge, OfOneFileTheLastLineCountsAndIsNoConflict) {
  const MergedTuning merged = merge_tuning({{"a", line(64, "x", kDay2) + line(64, "y", kDay1)}});
  EXPECT_EQ(merged.text(), line(64, "y", kDay1));
  EXPECT_THAT(merged.conflicts, IsEmpty());
}

TEST(TuningMerge, NamesLinesThatAreNoRecordsAndKeepsFieldsItDoesNotKnow) {
  std::string future = line(32, "x", kDay1);
  future.insert(1, R"("later":[1,2],)");
  const MergedTuning merged = merge_tuning({{"a", "nonsense\n" + future + R"({"version":1)"}});
  EXPECT_EQ(merged.text(), future);
  EXPECT_THAT(merged.bad_lines, ElementsAre(StartsWith("a:1: "), StartsWith("a:3: ")));
}

// Both counts stay, so that a run resumes with either, and the lookup takes the newer one.
TEST(TuningMerge, TokenCountsOfABucketAreDecisionsOfTheirOwn) {
  const MergedTuning merged =
      merge_tuning({{"a", line(64, "new", kDay2, 50)}, {"b", line(64, "old", kDay1, 64)}});
  EXPECT_EQ(merged.text(), line(64, "old", kDay1, 64) + line(64, "new", kDay2, 50));
  EXPECT_THAT(merged.conflicts, IsEmpty());
}

TEST(TuningMerge, DependsNeitherOnOrderNorOnRepetition) {
  std::mt19937 random(3);
  const auto pick = [&](unsigned most) { return static_cast<int>(random() % most); };
  for (int round = 0; round < 40; ++round) {
    std::vector<TuningText> files;
    for (int file = 0; file < 4; ++file) {
      files.push_back({"file" + std::to_string(file), ""});
      for (int i = pick(6); i > 0; --i)
        files.back().text += line(std::int64_t{32} << pick(2), std::to_string(pick(3)),
                                  pick(2) == 0 ? kDay1 : kDay2, 1 + pick(2));
    }
    const MergedTuning all = merge_tuning(files);
    EXPECT_EQ(merge_tuning({{"all", all.text()}}).text(), all.text());
    const std::string first = merge_tuning({files[0], files[1]}).text();
    const std::string rest = merge_tuning({files[2], files[3]}).text();
    EXPECT_EQ(merge_tuning({{"rest", rest}, {"first", first}}).text(), all.text());
    files.push_back(files.front());
    std::ranges::shuffle(files, random);
    const MergedTuning again = merge_tuning(files);
    EXPECT_EQ(again.lines, all.lines);
    EXPECT_EQ(again.conflicts, all.conflicts);
  }
}

std::string digest_of(std::vector<std::vector<TuningRecord>> sources) {
  TuningSet set;
  for (auto& records : sources) set.add(std::move(records), "source");
  return set.digest();
}

TEST(TuningDigest, IsOfTheChoicesAndNotOfTheFilesTheyAreIn) {
  const TuningRecord a = make_decision(kTunedProblem, 64, "a");
  const TuningRecord b = make_decision(kTunedProblem, 128, "b");
  TuningRecord timed = a;
  timed.date = kDay2;
  timed.winner.median_us = 3;
  const std::string digest = digest_of({{a, b}});
  EXPECT_EQ(digest.size(), 32);
  EXPECT_EQ(digest_of({{b}, {timed}, {b}}), digest);
  const TuningRecord other = make_decision(kTunedProblem, 64, "b");
  EXPECT_NE(digest_of({{other, b}}), digest);
  EXPECT_NE(digest_of({{a, b}, {other}}), digest) << "serves if the first is not admitted";
  EXPECT_NE(digest_of({{other, b}, {a}}), digest_of({{a, b}, {other}}));
  EXPECT_NE(digest_of({{a}}), digest);
}

}  // namespace
}  // namespace octile::cache
