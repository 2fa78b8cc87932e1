// Which configuration a token count gets: that of a matching record if it is admitted, else the
// cost model's. Also tests how a library handle, a plan and the environment take part.
#include "runtime/engine/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "generator/families.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "tests/support/api_handles.h"
#include "tests/support/tuning_testing.h"

namespace octile {
namespace {

namespace fs = std::filesystem;
using cache::TuningFile;
using cache::TuningRecord;
using cache::TuningSet;
using cache::testing::make_decision;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// Returns a device that does not exist, so that only a test's records can match it.
DeviceSpec fictional_device() {
  DeviceSpec device = *find_device("h200");
  device.name = "h999";
  device.sm_count = 96;
  return device;
}

TuningRecord record_for(const std::string& problem, std::int64_t bucket,
                        const KernelConfig& winner) {
  const DeviceSpec device = fictional_device();
  TuningRecord record =
      make_decision(problem, bucket, to_text(winner), device.name, device.sm_count);
  record.date = "2026-01-31T12:00:00Z";
  return record;
}

TuningSet set_of(std::vector<TuningRecord> records) {
  TuningSet set;
  set.add(std::move(records), "test");
  return set;
}

const std::string kText = test::kGemmText;
const std::string kInvariantText = kText + " invariant=1";

// Returns a configuration that the problem admits but the model chooses at none of these counts.
// Its predicted time is near that of the model's choice.
GemmConfig unlikely_config(const Problem& problem,
                           const std::vector<std::int64_t>& counts = {32, 64, 65, 128}) {
  const DeviceSpec device = fictional_device();
  const auto& gemm = std::get<GemmProblem>(problem);
  // The model ranks the whole space for each pick, so picks are computed once for each count, not
  // once for each candidate.
  std::vector<std::pair<std::int64_t, GemmConfig>> picks;
  for (const std::int64_t tokens : counts) {
    picks.emplace_back(tokens, default_config(gemm, tokens, device));
  }
  for (const GemmConfig& c : candidates(gemm, kDynamic, device).admitted) {
    const bool nearly_as_fast = std::ranges::all_of(picks, [&](const auto& of_count) {
      const auto& [tokens, pick] = of_count;
      const double limit =
          (tokens <= 128 ? 1.05 : 1.02) * estimate(pick, gemm, tokens, device).total_us;
      return c != pick && estimate(c, gemm, tokens, device).total_us <= limit;
    });
    if (nearly_as_fast) return c;
  }
  throw std::logic_error("the space has no second best configuration");
}

class ChoiceTest : public ::testing::Test {
 protected:
  Choice choose(const Problem& p, std::int64_t tokens, std::vector<TuningRecord> records) const {
    return choose_config(p, tokens, device, set_of(std::move(records)));
  }
  KernelConfig model(const Problem& p, std::int64_t tokens) const {
    return default_config(p, tokens, device);
  }

  const DeviceSpec device = fictional_device();
  const Problem problem = *parse_problem(kText);
  const GemmConfig tuned = unlikely_config(problem);
};

TEST_F(ChoiceTest, WithoutRecordsTheModelChooses) {
  const Choice choice = choose(problem, 64, {});
  EXPECT_EQ(choice.by, ChosenBy::kModel);
  EXPECT_EQ(choice.config,
            KernelConfig(default_config(std::get<GemmProblem>(problem), 64, device)));
  EXPECT_EQ(choice.record, std::nullopt);
  EXPECT_EQ(choice.reason, "the cost model");
}

// A record of one's own that cannot be used, such as one with a slip of the pen, hides no other
// source's record of the same decision.
TEST_F(ChoiceTest, AnUnusableRecordDoesNotHideTheOneBehindIt) {
  TuningRecord broken = record_for(kText, 64, tuned);
  broken.winner.config = "tile=7x7x7";
  TuningSet set;
  set.add({broken}, "mine");
  set.add({record_for(kText, 64, tuned)}, "shipped");
  const Choice choice = choose_config(problem, 64, device, set);
  EXPECT_EQ(choice.by, ChosenBy::kRecord);
  EXPECT_EQ(choice.config, KernelConfig(tuned));
  EXPECT_THAT(choice.reason, HasSubstr("shipped); not used: the exact record"));
  EXPECT_THAT(choice.reason, HasSubstr("mine), because"));
}

TEST_F(ChoiceTest, ARecordChangesTheChoiceOfItsBucketAndItsNeighbours) {
  const TuningRecord record = record_for(kText, 64, tuned);
  for (const auto& [tokens, by] : {std::pair{33, ChosenBy::kRecord},
                                   {64, ChosenBy::kRecord},
                                   {32, ChosenBy::kNearBucket},
                                   {65, ChosenBy::kNearBucket},
                                   {128, ChosenBy::kNearBucket},
                                   {129, ChosenBy::kModel},
                                   {16, ChosenBy::kModel}}) {
    const Choice choice = choose(problem, tokens, {record});
    EXPECT_EQ(choice.by, by) << tokens;
    EXPECT_EQ(choice.config, by == ChosenBy::kModel ? model(problem, tokens) : KernelConfig(tuned))
        << tokens;
    EXPECT_EQ(choice.record.has_value(), by != ChosenBy::kModel) << tokens;
  }
  TuningRecord timed = record;
  timed.winner.median_us = 12.5;
  timed.gain = 1.07;
  EXPECT_EQ(choose(problem, 64, {timed}).reason,
            "the exact record of '" + kText +
                "' at 64 tokens on h999 with 96 SMs (12.5 us, 1.070 times the default's speed, "
                "2026-01-31T12:00:00Z, test)");
}

TEST_F(ChoiceTest, HalfADoublingIsABucketOfItsOwn) {
  for (const auto& [tokens, by] : {std::pair{257, ChosenBy::kRecord},
                                   {384, ChosenBy::kRecord},
                                   {256, ChosenBy::kNearBucket},
                                   {385, ChosenBy::kNearBucket},
                                   {129, ChosenBy::kNearBucket},
                                   {768, ChosenBy::kNearBucket},
                                   {128, ChosenBy::kModel},
                                   {769, ChosenBy::kModel}}) {
    const GemmConfig winner = unlikely_config(problem, {bucket_upper(bucket_of(tokens))});
    EXPECT_EQ(choose(problem, tokens, {record_for(kText, 384, winner)}).by, by) << tokens;
  }
}

TEST_F(ChoiceTest, AProblemThatStatesItsTokenCountHasTheSameRecords) {
  Problem fixed = problem;
  std::get<GemmProblem>(fixed).m = 64;
  EXPECT_EQ(tuning_text(fixed), kText);
  EXPECT_EQ(choose(fixed, 64, {record_for(kText, 64, tuned)}).by, ChosenBy::kRecord);
  EXPECT_EQ(tuning_text(*parse_problem("quantize rows=64 cols=384 x=bf16 q=e4m3:1x128 out=row")),
            test::kQuantizeText);
}

TEST_F(ChoiceTest, AWinnerThatIsNotAdmittedIsPassedOver) {
  GemmConfig too_large = tuned;
  too_large.stages = 12;
  too_large.block_m = 256;
  too_large.block_n = 256;
  TuningRecord foreign = record_for(kText, 64, tuned);
  foreign.winner.config = "tile=64x64x128 wings=2";
  for (const auto& [record, why] :
       {std::pair{record_for(kText, 64, too_large), "refuses it"}, {foreign, "'wings=2'"}}) {
    const Choice choice = choose(problem, 64, {record});
    EXPECT_EQ(choice.by, ChosenBy::kModel);
    EXPECT_EQ(choice.config, model(problem, 64));
    EXPECT_THAT(choice.reason, HasSubstr("the cost model; not used: the exact record of"));
    EXPECT_THAT(choice.reason, HasSubstr(why));
    // The next best record is used.
    const Choice near = choose(problem, 64, {record, record_for(kText, 128, tuned)});
    EXPECT_EQ(near.by, ChosenBy::kNearBucket);
    EXPECT_EQ(near.config, KernelConfig(tuned));
  }
}

// A file of records may come from others. The sentence about it stays short.
TEST_F(ChoiceTest, ManyRecordsThatArePassedOverMakeNoLongSentence) {
  std::vector<TuningRecord> records;
  for (int other = 0; other < 1000; ++other) {
    TuningRecord& record = records.emplace_back(record_for(kText, 64, tuned));
    record.device = "other" + std::to_string(other);
    record.sm_count = 1000 + other;  // no sister of the device
    record.date = std::string(60'000, 'd');
  }
  records[0].device = device.name;
  records[0].sm_count = device.sm_count;
  records[0].winner.config = std::string(60'000, 'c');
  const Choice choice = choose(problem, 64, records);
  EXPECT_EQ(choice.by, ChosenBy::kModel);
  EXPECT_TRUE(choice.reason.ends_with("; not used: 992 more"));
  EXPECT_LT(choice.reason.size(), 10'000U);

  records.push_back(record_for(kText, 64, tuned));
  records.back().date = std::string(60'000, 'd');
  EXPECT_LT(choose(problem, 64, records).reason.size(), 2'000U);
}

TEST_F(ChoiceTest, ANearWinnerThatTheModelThinksSlowIsPassedOver) {
  GemmConfig slow = tuned;
  const auto& gemm = std::get<GemmProblem>(problem);
  const auto us = [&](const GemmConfig& of) { return estimate(of, gemm, 128, device).total_us; };
  const double default_us = us(default_config(gemm, 128, device));
  for (const GemmConfig& c : candidates(gemm, kDynamic, device).admitted) {
    if (us(c) > 1.1 * default_us) slow = c;
  }
  ASSERT_NE(slow, tuned);
  const TuningRecord record = record_for(kText, 64, slow);
  // The record was measured at this count.
  EXPECT_EQ(choose(problem, 64, {record}).config, KernelConfig(slow));
  const Choice choice = choose(problem, 128, {record});
  EXPECT_EQ(choice.by, ChosenBy::kModel);
  EXPECT_EQ(choice.config, model(problem, 128));
  EXPECT_THAT(choice.reason, HasSubstr("not used: the near bucket's record of"));
  EXPECT_THAT(choice.reason, HasSubstr("because the cost model expects"));
  EXPECT_EQ(choose(problem, 128, {record, record_for(kText, 256, tuned)}).by,
            ChosenBy::kNearBucket);
}

TEST_F(ChoiceTest, ASisterCardsRecordIsUsedWhereTheModelAgrees) {
  GemmConfig slow = tuned;
  const auto& gemm = std::get<GemmProblem>(problem);
  for (const GemmConfig& c : candidates(gemm, kDynamic, device).admitted) {
    if (estimate_us(c, gemm, 64, device) > 1.1 * estimate_us(tuned, gemm, 64, device)) slow = c;
  }
  ASSERT_NE(slow, tuned);
  TuningRecord sister = record_for(kText, 64, tuned);
  sister.device = "h200";
  const Choice choice = choose(problem, 64, {sister});
  EXPECT_EQ(choice.by, ChosenBy::kSisterCard);
  EXPECT_EQ(choice.config, KernelConfig(tuned));
  EXPECT_THAT(choice.reason, HasSubstr("the sister card's record of"));
  EXPECT_THAT(choice.reason, HasSubstr("on h200 with 96 SMs"));
  // This card's own records come first, near ones too.
  EXPECT_EQ(choose(problem, 64, {sister, record_for(kText, 128, tuned)}).by, ChosenBy::kNearBucket);

  sister.winner.config = to_text(slow);
  const Choice slower = choose(problem, 64, {sister});
  EXPECT_EQ(slower.by, ChosenBy::kModel);
  EXPECT_THAT(slower.reason, HasSubstr("because the cost model expects"));
}

TEST_F(ChoiceTest, AQuantisersSisterRecordIsNotUsed) {
  const Problem quantize = *parse_problem(test::kQuantizeText);
  QuantizeConfig other = std::get<QuantizeConfig>(model(quantize, 64));
  other.threads = other.threads == 128 ? 256 : 128;
  TuningRecord sister = record_for(test::kQuantizeText, 64, other);
  sister.device = "h200";
  const Choice choice = choose(quantize, 64, {sister});
  EXPECT_EQ(choice.by, ChosenBy::kModel);
  EXPECT_THAT(choice.reason, HasSubstr("not used: another device's record of"));
}

TEST_F(ChoiceTest, AnotherDevicesRecordIsMentionedAndNotUsed) {
  TuningRecord record = record_for(kText, 64, tuned);
  record.sm_count = 78;
  const Choice choice = choose(problem, 64, {record});
  EXPECT_EQ(choice.by, ChosenBy::kModel);
  EXPECT_EQ(choice.config, model(problem, 64));
  EXPECT_THAT(choice.reason, HasSubstr("not used: another device's record of"));
  EXPECT_THAT(choice.reason, HasSubstr("with 78 SMs"));
}

TEST_F(ChoiceTest, AQuantiserHasRecordsToo) {
  const Problem quantize = *parse_problem(test::kQuantizeText);
  const KernelConfig chosen = model(quantize, 64);
  QuantizeConfig other = std::get<QuantizeConfig>(chosen);
  other.threads = other.threads == 128 ? 256 : 128;
  ASSERT_TRUE(check_config(std::get<QuantizeProblem>(quantize), other, device));
  const Choice choice = choose(quantize, 64, {record_for(test::kQuantizeText, 64, other)});
  EXPECT_EQ(choice.by, ChosenBy::kRecord);
  EXPECT_EQ(choice.config, KernelConfig(other));
  other.threads = 100;
  EXPECT_EQ(choose(quantize, 64, {record_for(test::kQuantizeText, 64, other)}).by,
            ChosenBy::kModel);
}

// --- batch-invariant problems ---

TEST_F(ChoiceTest, AnInvariantProblemTakesItsOwnRecordsBeforeThoseOfTheFreeOne) {
  const Problem invariant = *parse_problem(kInvariantText);
  GemmConfig other = tuned;
  other.raster.band = tuned.raster.band + 1;
  const TuningRecord of_free = record_for(kText, 64, tuned);
  const TuningRecord own = record_for(kInvariantText, 64, other);
  const TuningRecord own_near = record_for(kInvariantText, 128, other);
  EXPECT_EQ(choose(invariant, 64, {of_free, own}).config, KernelConfig(other));
  EXPECT_EQ(choose(invariant, 64, {own_near, of_free}).config, KernelConfig(tuned));
  EXPECT_EQ(choose(invariant, 64, {of_free}).by, ChosenBy::kRecord);
  EXPECT_EQ(choose(problem, 64, {own}).by, ChosenBy::kModel) << "not the other way round";
}

TEST_F(ChoiceTest, AnInvariantProblemHasOneSetOfNumerics) {
  const Problem invariant = *parse_problem(kInvariantText);
  const auto numerics = [](const KernelConfig& config) {
    const auto& c = std::get<GemmConfig>(config);
    return std::pair(c.promote, c.splits);
  };
  GemmConfig split = tuned;
  split.splits = 2;
  GemmConfig promoted = tuned;
  promoted.promote = 64;
  std::vector<TuningRecord> records;
  for (int bucket = 0; bucket <= bucket_of(16384); ++bucket) {
    const GemmConfig& winner = bucket % 3 == 0 ? split : bucket % 3 == 1 ? promoted : tuned;
    records.push_back(record_for(kText, bucket_upper(bucket), winner));
  }
  for (const std::int64_t tokens : {1, 2, 4, 8, 64, 150, 1000, 3000, 4096, 16384}) {
    EXPECT_EQ(numerics(choose(invariant, tokens, records).config), numerics(model(invariant, 1)))
        << tokens;
  }
}

// Neither does the unit change, where a card has several.
TEST_F(ChoiceTest, AnInvariantProblemHasOneUnit) {
  const Problem invariant = *parse_problem(kInvariantText);
  for (const char* name : {"b200", "rtx5090"}) {
    DeviceSpec card = *find_device(name);
    card.unused_units.clear();
    std::set<MatrixUnit> units;
    for (const std::int64_t tokens : {1, 8, 64, 1000, 16384}) {
      const Choice choice = choose_config(invariant, tokens, card, cache::TuningSet());
      units.insert(std::get<GemmConfig>(choice.config).unit);
    }
    EXPECT_EQ(units, std::set{card.units.front()}) << name;
  }
}

// A record of a unit that has not passed its test on this card serves as little as the unit.
TEST_F(ChoiceTest, ARecordOfAnUnusedUnitIsPassedOver) {
  const Problem asked = *parse_problem(kText);
  DeviceSpec card = *find_device("b200");
  const GemmConfig config = *parse_gemm_config("tile=128x128x128 stages=4 inflight=2 unit=tcgen05");
  const auto reason = rejection_reason(config, asked, 4096, card);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("no test of the unit tcgen05 has passed on this device"),
            std::string::npos);
  card.unused_units.clear();
  EXPECT_FALSE(rejection_reason(config, asked, 4096, card));
}

// --- problems tuned alike ---

TEST_F(ChoiceTest, OtherCodesABiasAndASentryAreServedByTheCommonProblem) {
  const TuningRecord common = record_for(kText, 64, tuned);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"a=e4m3", "a=e5m2"}, {"d=bf16", "d=fp16"}, {"acc=0", "acc=0 bias=fp32 sentry=1"}}) {
    std::string text = kText;
    text.replace(text.find(from), from.size(), to);
    const auto alike = parse_problem(text);
    ASSERT_TRUE(alike) << text;
    const Choice choice = choose(*alike, 64, {common});
    EXPECT_EQ(choice.config, KernelConfig(tuned)) << text;
    EXPECT_EQ(choice.by, ChosenBy::kNearShape) << text;
    GemmConfig other = tuned;
    other.raster.band = tuned.raster.band + 1;
    const TuningRecord own = record_for(to_text(with_dynamic_tokens(*alike)), 64, other);
    EXPECT_EQ(choose(*alike, 64, {common, own}).config, KernelConfig(other)) << text;
    EXPECT_EQ(choose(problem, 64, {own}).by, ChosenBy::kModel) << "not the other way round";
  }
}

// A measurement of the common problem at this count is not passed over for an estimate, and
// comes before the problem's own records of other counts.
TEST_F(ChoiceTest, AMeasurementOfTheCommonProblemOutweighsTheModel) {
  GemmConfig slow = tuned;
  const auto& gemm = std::get<GemmProblem>(problem);
  for (const GemmConfig& c : candidates(gemm, kDynamic, device).admitted) {
    if (estimate_us(c, gemm, 64, device) > 1.1 * estimate_us(tuned, gemm, 64, device)) slow = c;
  }
  ASSERT_NE(slow, tuned);
  const std::string watched = kText + " sentry=1";
  const Problem with_sentry = *parse_problem(watched);
  const TuningRecord common = record_for(kText, 64, slow);
  EXPECT_EQ(choose(with_sentry, 64, {common}).config, KernelConfig(slow));
  EXPECT_EQ(choose(with_sentry, 64, {record_for(watched, 128, tuned), common}).config,
            KernelConfig(slow));
  EXPECT_EQ(choose(with_sentry, 128, {common}).by, ChosenBy::kModel) << "another count";
}

// --- the handle's files ---

class RecordsTest : public ChoiceTest {
 protected:
  Choice chosen_by(Engine& engine) const { return engine.choose_config(problem, 64, device); }
  Logger logger{[this](LogLevel level, const std::string& message) {
                  if (level == LogLevel::kWarning) warnings.push_back(message);
                },
                LogLevel::kDebug};
  std::vector<std::string> warnings;
  test::TempFolder writable, shipped;
};

TEST_F(RecordsTest, AnAppendedRecordIsTakenUp) {
  Engine engine({writable.path(), {}, false}, logger);
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kModel);
  const TuningFile file(writable.path(), true);
  ASSERT_TRUE(file.append(record_for(kText, 128, tuned)));
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kNearBucket);
  ASSERT_TRUE(file.append(record_for(kText, 64, tuned)));
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kRecord);
  EXPECT_EQ(engine.records(), engine.records()) << "not read again while the file is as it was";
  fs::remove(file.path());
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kModel);
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(RecordsTest, TheWritableRootComesBeforeReadOnlyOnes) {
  GemmConfig other = tuned;
  other.raster.band = tuned.raster.band + 1;
  ASSERT_TRUE(TuningFile(shipped.path(), true).append(record_for(kText, 64, other)));
  Engine engine({writable.path(), {shipped.path(), "/nonexistent"}, false}, logger);
  EXPECT_EQ(chosen_by(engine).config, KernelConfig(other));
  EXPECT_THAT(chosen_by(engine).reason, HasSubstr(shipped.path() + "/tuning.jsonl"));
  ASSERT_TRUE(TuningFile(writable.path(), true).append(record_for(kText, 64, tuned)));
  EXPECT_EQ(chosen_by(engine).config, KernelConfig(tuned));
  ASSERT_EQ(engine.records()->sources().size(), 4U);
  EXPECT_EQ(engine.records()->sources()[0].records, 1U);
  EXPECT_EQ(engine.records()->sources()[1].records, 0U) << "the same decision as the first file's";
  EXPECT_EQ(engine.records()->sources()[3].origin, kEmbeddedOrigin);
}

TEST_F(RecordsTest, TuningTurnedOffLooksAtNoFile) {
  fs::create_directory(writable.path() + "/tuning.jsonl");
  Engine off({writable.path(), {}, false, false}, logger);
  EXPECT_EQ(chosen_by(off).by, ChosenBy::kModel);
  EXPECT_THAT(off.records()->sources(), IsEmpty());
  EXPECT_THAT(warnings, IsEmpty());
}

TEST_F(RecordsTest, WhatIsNoRecordIsReportedOnce) {
  const TuningFile file(writable.path(), true);
  ASSERT_TRUE(file.append(record_for(kText, 64, tuned)));
  std::ofstream(file.path(), std::ios::app) << "nonsense\n{\"version\":2}\n";
  Engine engine({writable.path(), {}, false}, logger);
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kRecord);
  ASSERT_TRUE(file.append(record_for(kText, 128, tuned)));
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kRecord);
  EXPECT_THAT(warnings, ElementsAre("tuning records " + file.path() +
                                    ": 2 lines are skipped; line 2: tuning record: not a JSON "
                                    "object"));
}

TEST_F(RecordsTest, AFileOfTooManyRecordsIsReportedOnce) {
  const TuningFile file(writable.path(), true);
  ASSERT_TRUE(file.append(record_for(kText, 64, tuned)));
  std::ofstream more(file.path(), std::ios::app);
  // Lines of one decision, whose device is another.
  const std::string other = R"({"version":1,"problem":"p","bucket":1,"tokens":1,"device":"d",)"
                            R"("sm_count":1,"winner":{"config":"c"}})";
  for (std::size_t i = 0; i < cache::kMaxTuningRecords; ++i) more << other << "\n";
  more.close();
  Engine engine({writable.path(), {}, false}, logger);
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kRecord);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("only the first 100000 are read")));
}

TEST_F(RecordsTest, AFileThatIsRefusedIsReportedOnce) {
  const TuningFile file(writable.path(), true);
  ASSERT_TRUE(file.append(record_for(kText, 64, tuned)));
  fs::permissions(file.path(), fs::perms(0666));
  Engine engine({writable.path(), {}, false}, logger);
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kModel);
  std::ofstream(file.path(), std::ios::app) << "\n";
  EXPECT_EQ(chosen_by(engine).by, ChosenBy::kModel);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("tuning records are not used: " + file.path() +
                                              ": its mode is 0666")));
}

// --- the embedded set ---

// A line of the set that is not a record, or is never chosen, would go unnoticed.
TEST(EmbeddedTuning, EveryRecordIsOneThatIsUsed) {
  std::size_t lines = 0;
  for (const auto& item : fs::directory_iterator(OCTILE_SOURCE_DIR "/runtime/tuned")) {
    if (item.path().extension() != ".jsonl") continue;
    std::ifstream file(item.path());
    for (std::string line; std::getline(file, line); ++lines) {
      const auto record = cache::parse_tuning_record(line);
      ASSERT_TRUE(record) << item.path() << ": " << record.error();
      EXPECT_TRUE(std::ranges::find(embedded_tuning(), *record) != embedded_tuning().end()) << line;
      const auto problem = parse_problem(record->problem);
      ASSERT_TRUE(problem) << problem.error().message;
      const DeviceSpec* device = find_device(record->device);
      ASSERT_NE(device, nullptr) << record->device;
      TuningSet alone;
      alone.add({*record}, "alone");
      const Choice choice = choose_config(*problem, record->tokens, *device, alone);
      EXPECT_EQ(choice.by, ChosenBy::kRecord) << line << "\n" << choice.reason;
    }
  }
  EXPECT_EQ(embedded_tuning().size(), lines);
}

// --- plans ---

class PlanChoiceTest : public RecordsTest {
 protected:
  void SetUp() override {
    if (!Nvrtc::open()) GTEST_SKIP() << "no NVRTC";
    h200_tuned.device = "h200";
    h200_tuned.sm_count = find_device("h200")->sm_count;
  }
  // Returns [tokens, chosen by] of every bucket that has this configuration.
  static std::map<std::int64_t, std::string> chosen(octile_plan* plan, const std::string& config) {
    std::map<std::int64_t, std::string> by;
    const nlohmann::json description = test::describe(plan);
    for (const auto& kernel : description["kernels"]) {
      if (kernel["config"] != config) continue;
      for (std::size_t i = 0; i < kernel["buckets"].size(); ++i) {
        by[kernel["buckets"][i]] = kernel["chosen_by"].at(i);
      }
    }
    return by;
  }

  // No model file has this shape.
  const std::string text =
      "gemm m=? n=136 k=2944 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  const GemmConfig winner = unlikely_config(*parse_problem(text));
  TuningRecord h200_tuned = record_for(text, 64, winner);
};

TEST_F(PlanChoiceTest, DescribeSaysByWhatEachBucketWasChosen) {
  ASSERT_TRUE(TuningFile(writable.path(), true).append(h200_tuned));
  const test::LibraryHandle library(writable.path());
  const test::PlanHandle plan = test::make_plan(library, "h200", text);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 64, 512, 0), OCTILE_OK) << octile_last_error();
  const auto by = chosen(plan.get(), to_text(winner));
  EXPECT_EQ(by.at(64), "exact record");
  EXPECT_EQ(by.at(128), "near bucket");
  const nlohmann::json description = test::describe(plan.get());
  std::vector<std::int64_t> buckets;
  for (const auto& kernel : description["kernels"]) {
    ASSERT_EQ(kernel["buckets"].size(), kernel["chosen_by"].size());
    for (std::size_t i = 0; i < kernel["buckets"].size(); ++i) {
      buckets.push_back(kernel["buckets"][i]);
      if (kernel["buckets"][i] > 128) {
        EXPECT_EQ(kernel["chosen_by"][i], "cost model");
      }
    }
  }
  EXPECT_THAT(buckets, UnorderedElementsAre(64, 128, 192, 256, 384, 512));
}

TEST_F(PlanChoiceTest, TwoCountsOfOneDoublingMayHaveTwoKernels) {
  GemmConfig other = winner;
  other.raster.band = winner.raster.band + 1;
  TuningRecord first = h200_tuned;
  first.bucket = first.tokens = 384;
  TuningRecord second = h200_tuned;
  second.bucket = second.tokens = 512;
  second.winner.config = to_text(other);
  ASSERT_TRUE(TuningFile(writable.path(), true).append(first));
  ASSERT_TRUE(TuningFile(writable.path(), true).append(second));
  const test::LibraryHandle library(writable.path());
  const test::PlanHandle plan = test::make_plan(library, "h200", text);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 300, 500, 0), OCTILE_OK) << octile_last_error();
  EXPECT_THAT(chosen(plan.get(), to_text(winner)), ElementsAre(Pair(384, "exact record")));
  EXPECT_THAT(chosen(plan.get(), to_text(other)), ElementsAre(Pair(512, "exact record")));
}

// A host that cannot compile uses the kernels that it has, with any records.
TEST_F(PlanChoiceTest, WhereARecordsKernelCannotBeHadTheModelsServes) {
  const auto prepare = [&](const test::LibraryHandle& library) {
    test::PlanHandle plan = test::make_plan(library, "h200", text);
    EXPECT_EQ(octile_plan_prepare(plan.get(), 64, 64, 0), OCTILE_OK) << octile_last_error();
    return test::describe(plan.get())["kernels"][0]["chosen_by"][0].get<std::string>();
  };
  EXPECT_EQ(prepare(test::LibraryHandle(writable.path())), "cost model");
  ASSERT_TRUE(TuningFile(writable.path(), true).append(h200_tuned));
  const test::LibraryHandle offline(writable.path(), true);
  EXPECT_EQ(prepare(offline), "cost model");
  EXPECT_THAT(offline.log.of(OCTILE_LOG_WARNING),
              ElementsAre(HasSubstr("a tuning record's configuration is not used, the cost "
                                    "model's is: kernel octile_gemm_")));
  EXPECT_EQ(prepare(test::LibraryHandle(writable.path())), "exact record");
  EXPECT_EQ(prepare(offline), "exact record") << "a failure is not remembered";
  // If neither kernel is available, the error names the chosen configuration.
  fs::remove_all(writable.path() + "/v1");
  const test::LibraryHandle without(writable.path(), true);
  const test::PlanHandle plan = test::make_plan(without, "h200", text);
  test::expect_refused(octile_plan_prepare(plan.get(), 64, 64, 0), OCTILE_OFFLINE,
                       {"is not in the cache"});
}

TEST_F(PlanChoiceTest, TheEnvironmentTurnsRecordsOff) {
  ASSERT_TRUE(TuningFile(writable.path(), true).append(h200_tuned));
  ASSERT_EQ(::setenv("OCTILE_TUNING", "off", 1), 0);  // NOLINT(concurrency-mt-unsafe)
  const test::LibraryHandle library(writable.path());
  ::unsetenv("OCTILE_TUNING");  // NOLINT(concurrency-mt-unsafe)
  const test::PlanHandle plan = test::make_plan(library, "h200", text);
  ASSERT_EQ(octile_plan_prepare(plan.get(), 64, 64, 0), OCTILE_OK) << octile_last_error();
  EXPECT_EQ(test::describe(plan.get())["kernels"][0]["chosen_by"][0], "cost model");
  EXPECT_THAT(chosen(plan.get(), to_text(winner)), IsEmpty());
}

}  // namespace
}  // namespace octile
