// Which records match a query, how well, and in which order.
#include "cache/tuning_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/tuning_testing.h"

namespace octile::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kTunedProblem;
using testing::make_decision;

std::string gemm(int n, int k, const std::string& tail = "promote=128") {
  return "gemm m=? n=" + std::to_string(n) + " k=" + std::to_string(k) +
         " a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 " + tail;
}

// Returns "match config" for each hit.
std::vector<std::string> answers(const TuningSet& set, const TuningQuery& query) {
  std::vector<std::string> found;
  for (const TuningHit& hit : set.lookup(query)) {
    found.push_back(std::string(name_of(hit.match)) + " " + hit.record->winner.config);
  }
  return found;
}

TuningSet set_of(std::vector<TuningRecord> records) {
  TuningSet set;
  set.add(std::move(records), "test");
  return set;
}

TEST(TuningSet, AnEmptyOneHasNothing) {
  EXPECT_THAT(answers(TuningSet(), {kTunedProblem, 64, "h200", 132}), IsEmpty());
  EXPECT_THAT(answers(set_of({}), {"", 64, "h200", 132}), IsEmpty());
}

TEST(TuningSet, SaysHowWellARecordMatches) {
  const std::string tuned = gemm(4000, 2000);
  const TuningSet set = set_of({make_decision(tuned, 64, "it")});
  const struct {
    std::string problem;
    std::int64_t bucket;
    const char* device;
    int sm_count;
    const char* answer;  // "": no hit
  } kCases[] = {
      {tuned, 64, "h200", 132, "exact it"},
      // Other token counts match up to a factor of two.
      {tuned, 48, "h200", 132, "near bucket it"},
      {tuned, 96, "h200", 132, "near bucket it"},
      {tuned, 128, "h200", 132, "near bucket it"},
      {tuned, 129, "h200", 132, ""},
      {tuned, 192, "h200", 132, ""},
      {tuned, 32, "h200", 132, "near bucket it"},
      {tuned, 31, "h200", 132, ""},
      {tuned, 0, "h200", 132, ""},
      // Other extents match up to 25 % each, in both directions, at the same token count.
      {gemm(5000, 2000), 64, "h200", 132, "near shape it"},
      {gemm(5001, 2000), 64, "h200", 132, ""},
      {gemm(3200, 2000), 64, "h200", 132, "near shape it"},
      {gemm(3199, 2000), 64, "h200", 132, ""},
      {gemm(5000, 2500), 64, "h200", 132, "near shape it"},
      {gemm(5000, 2501), 64, "h200", 132, ""},
      {gemm(0, 2000), 64, "h200", 132, ""},
      {gemm(5000, 2000), 128, "h200", 132, ""},
      // Another device matches only with the same problem and bucket.
      {tuned, 64, "h100", 132, "other device it"},
      {tuned, 64, "h200", 114, "other device it"},
      {tuned, 128, "h100", 132, ""},
      {gemm(5000, 2000), 64, "h100", 132, ""},
      // Everything else must be equal.
      {gemm(4000, 2000, "promote=64"), 64, "h200", 132, ""},
      {gemm(4000, 2000, "promote=128 invariant=1"), 64, "h200", 132, ""},
      {"gemm m=64 n=4000 k=2000 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128", 64, "h200",
       132, ""},
      {"quantize rows=? cols=4000 x=bf16 q=e4m3:1x128 out=row", 64, "h200", 132, ""},
      {"gemm", 64, "h200", 132, ""},
  };
  for (const auto& c : kCases) {
    const auto found = answers(set, {c.problem, c.bucket, c.device, c.sm_count});
    EXPECT_EQ(found,
              *c.answer == '\0' ? std::vector<std::string>{} : std::vector<std::string>{c.answer})
        << c.problem << ", bucket " << c.bucket << ", " << c.device << " with " << c.sm_count;
  }
}

TEST(TuningSet, ExtentsOfAQuantiserAreItsColumns) {
  const auto quantize = [](int cols) {
    return "quantize rows=? cols=" + std::to_string(cols) + " x=bf16 q=e4m3:1x128 out=row";
  };
  const TuningSet set = set_of({make_decision(quantize(4096), 64, "it")});
  EXPECT_THAT(answers(set, {quantize(5120), 64, "h200", 132}), ElementsAre("near shape it"));
  EXPECT_THAT(answers(set, {quantize(5121), 64, "h200", 132}), IsEmpty());
}

TEST(TuningSet, OrdersTheBestFirstWhateverTheOrderOfTheRecords) {
  std::vector<TuningRecord> records{
      make_decision(gemm(4096, 2048), 64, "exact"),
      make_decision(gemm(4096, 2048), 128, "twice"),
      make_decision(gemm(4096, 2048), 32, "half"),
      make_decision(gemm(4224, 2048), 64, "n + 3 %"),
      make_decision(gemm(4096, 2176), 64, "k + 6 %"),
      make_decision(gemm(4864, 2176), 64, "n + 19 %, k + 6 %"),
      make_decision(gemm(4096, 2560), 64, "k + 25 %"),
      make_decision(gemm(4096, 2048), 64, "other, 78 SMs", "h20", 78),
      make_decision(gemm(4096, 2048), 64, "other, 114 SMs", "h200", 114),
      make_decision(gemm(4096, 2048), 256, "too far"),
  };
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::ranges::shuffle(records, random);
    EXPECT_THAT(
        answers(set_of(records), {gemm(4096, 2048), 64, "h200", 132}),
        ElementsAre("exact exact", "near bucket twice", "near bucket half", "near shape n + 3 %",
                    "near shape k + 6 %", "near shape k + 25 %", "near shape n + 19 %, k + 6 %",
                    "other device other, 78 SMs", "other device other, 114 SMs"));
  }
}

TEST(TuningSet, NearTokenCountsAreOrderedByTheirRatioThenTheLargerFirst) {
  std::vector<TuningRecord> records;
  for (const int bucket : {191, 192, 256, 288, 512, 576, 768, 769}) {
    records.push_back(make_decision(kTunedProblem, bucket, std::to_string(bucket)));
  }
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::ranges::shuffle(records, random);
    EXPECT_THAT(answers(set_of(records), {kTunedProblem, 384, "h200", 132}),
                ElementsAre("near bucket 512", "near bucket 288", "near bucket 576",
                            "near bucket 256", "near bucket 768", "near bucket 192"));
  }
}

TEST(TuningSet, EquallyNearExtentsAreOrderedByText) {
  std::vector<TuningRecord> records{make_decision(gemm(4800, 4000), 64, "n"),
                                    make_decision(gemm(4000, 4800), 64, "k")};
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(answers(set_of(records), {gemm(4000, 4000), 64, "h200", 132}),
                ElementsAre("near shape k", "near shape n"));
    std::ranges::reverse(records);
  }
}

TEST(TuningSet, TheLastRecordOfAFileAndTheFirstFileWin) {
  TuningSet set;
  set.add({make_decision(kTunedProblem, 64, "old"), make_decision(kTunedProblem, 64, "new"),
           make_decision(kTunedProblem, 64, "new elsewhere", "h100")},
          "mine");
  set.add({make_decision(kTunedProblem, 64, "shipped"), make_decision(kTunedProblem, 128, "more")},
          "shipped");
  const auto hits = set.lookup({kTunedProblem, 64, "h200", 132});
  ASSERT_EQ(hits.size(), 4U);
  EXPECT_EQ(hits[0].record->winner.config, "new");
  EXPECT_EQ(hits[0].origin, "mine");
  EXPECT_EQ(hits[1].record->winner.config, "shipped") << "for a caller who cannot use the first";
  EXPECT_EQ(hits[1].origin, "shipped");
  EXPECT_EQ(hits[2].record->winner.config, "more");
  EXPECT_EQ(hits[2].origin, "shipped");
  EXPECT_EQ(hits[3].record->winner.config, "new elsewhere");
  ASSERT_EQ(set.sources().size(), 2U);
  EXPECT_EQ(set.sources()[0].records, 2U);
  EXPECT_EQ(set.sources()[1].records, 1U)
      << "a record that an earlier source precedes is not counted";
}

TEST(TuningSet, RelativesAreTheOtherCountsThenTheFusedOrSeparateSister) {
  const TuningSet set = set_of({
      make_decision(gemm(6144, 4096), 64, "itself"),
      make_decision(gemm(6144, 4096), 256, "four times"),
      make_decision(gemm(6144, 4096), 32, "half"),
      make_decision(gemm(6144, 4096), 8, "an eighth"),
      make_decision(gemm(4096, 4096), 64, "q of qkv"),
      make_decision(gemm(1024, 4096), 64, "k of qkv"),
      make_decision(gemm(512, 4096), 64, "a twelfth"),
      make_decision(gemm(4096, 4096), 128, "q at another count"),
      make_decision(gemm(4096, 14336), 64, "another layer"),
      make_decision(gemm(6144, 4096), 64, "sister", "h100"),
      make_decision(gemm(6144, 4096), 32, "sister at another count", "h100"),
  });
  std::vector<std::string> found;
  const std::string wanted = gemm(6144, 4096);
  for (const TuningHit& hit : set.relatives({wanted, 64, "h200", 132}))
    found.push_back(hit.record->winner.config);
  EXPECT_THAT(found, ElementsAre("itself", "half", "four times", "q of qkv", "k of qkv", "sister"));
  EXPECT_THAT(set.relatives({"quantize rows=? cols=8", 64, "h200", 132}), IsEmpty());
}

// The library marks extents by '#', so that a problem whose text has one must be of another kind:
// it has fewer extents to compare.
TEST(TuningSet, ATextWithTheMarkOfAnExtentMatchesNothingElse) {
  const std::string marked = "gemm m=? n=# k=# promote=128";
  const std::string plain = "gemm m=? n=8 k=128 promote=128";
  for (const auto& [record, query] : {std::pair(marked, plain), std::pair(plain, marked)}) {
    const TuningSet set = set_of({make_decision(record, 64, "it")});
    EXPECT_THAT(answers(set, {query, 64, "h200", 132}), IsEmpty()) << query;
    EXPECT_THAT(answers(set, {record, 64, "h200", 132}), ElementsAre("exact it")) << record;
  }
}

TEST(TuningSet, ExtremeNumbersAreHarmless) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::string problem = "gemm m=? n=99999999999999999999 k=9223372036854775807";
  const TuningSet set = set_of({make_decision(problem, kMost, "it")});
  EXPECT_THAT(answers(set, {problem, kMost, "h200", 132}), ElementsAre("exact it"));
  EXPECT_THAT(answers(set, {problem, kMost / 2, "h200", 132}), IsEmpty());
  EXPECT_THAT(answers(set, {problem, kMost / 2 + 1, "h200", 132}), ElementsAre("near bucket it"));
  EXPECT_THAT(answers(set, {problem, std::numeric_limits<std::int64_t>::min(), "h200", 132}),
              IsEmpty());
  // These ratios are equal in double.
  std::vector<TuningRecord> close{make_decision(problem, kMost - 1, "second"),
                                  make_decision(problem, kMost, "first")};
  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(answers(set_of(close), {problem, kMost - 2, "h200", 132}),
                ElementsAre("near bucket first", "near bucket second"));
    std::ranges::reverse(close);
  }
}

}  // namespace
}  // namespace octile::cache
