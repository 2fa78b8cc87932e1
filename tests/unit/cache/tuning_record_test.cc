// One tuning record as a line of JSON: it is read as it was written. A line that is not a record of
// this version is refused with the field that is wrong.
#include "cache/tuning_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/tuning_testing.h"

namespace octile::cache {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using testing::make_decision;
using testing::make_full_record;
using ::testing::Not;

const Json kLeast{{"version", 1},
                  {"problem", "gemm m=? n=8"},
                  {"bucket", 64},
                  {"tokens", 64},
                  {"device", "h200"},
                  {"sm_count", 132},
                  {"winner", {{"config", "tile=64x64x128"}}}};

// Returns the line of kLeast with one field changed.
std::string line_with(const char* field, const Json& value) {
  Json json = kLeast;
  json[field] = value;
  return json.dump();
}

TEST(TuningRecord, EveryFieldSurvives) {
  const TuningRecord record = make_full_record();
  const auto read = parse_tuning_record(to_json_line(record));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, record);
  // A field that to_json_line() forgot would equal its default here.
  const TuningRecord unset;
  EXPECT_NE(read->runner_up, unset.runner_up);
  EXPECT_NE(read->default_config, unset.default_config);
  EXPECT_NE(read->counts, unset.counts);
  EXPECT_NE(read->conditions, unset.conditions);
  EXPECT_NE(read->baselines_us, unset.baselines_us);
  EXPECT_NE(read->quantize_us, unset.quantize_us);
  EXPECT_NE(read->error, unset.error);
  EXPECT_NE(read->toolchain, unset.toolchain);
}

TEST(TuningRecord, ADecisionAloneIsARecord) {
  const auto read = parse_tuning_record(kLeast.dump());
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, make_decision("gemm m=? n=8", 64, "tile=64x64x128"));
  EXPECT_EQ(*parse_tuning_record(to_json_line(*read)), *read);
}

TEST(TuningRecord, ALineWithoutWhatIsNotAlwaysMeasuredIsRead) {
  Json old = Json::parse(to_json_line(make_full_record()));
  old.erase("quantize_us");
  old.erase("error");
  const auto read = parse_tuning_record(old.dump());
  ASSERT_TRUE(read) << read.error();
  TuningRecord expected = make_full_record();
  expected.quantize_us.clear();
  expected.error.reset();
  EXPECT_EQ(*read, expected);
  EXPECT_EQ(to_json_line(*read), old.dump()) << "and written as it was";
}

TEST(TuningRecord, IsOneLineWhateverItsTextsHold) {
  TuningRecord record = make_full_record();
  record.protocol = "two\nlines \"quoted\" \x01 \xff";
  const std::string line = to_json_line(record);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const auto read = parse_tuning_record(line);
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(read->protocol, "two\nlines \"quoted\" \x01 \xef\xbf\xbd") << "U+FFFD for no UTF-8";
}

TEST(TuningRecord, PassesOverFieldsItDoesNotKnow) {
  Json json = Json::parse(to_json_line(make_full_record()));
  json["colour"] = "red";
  json["winner"]["registers"] = 168;
  json["candidates"]["dreamt_of"] = Json::array({1, 2});
  json["conditions"]["fan"] = nullptr;
  const auto read = parse_tuning_record(json.dump());
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, make_full_record());
}

TEST(TuningRecord, RefusesALineWithoutADecidingField) {
  for (const auto& [name, value] : kLeast.items()) {
    Json json = kLeast;
    json.erase(name);
    const auto read = parse_tuning_record(json.dump());
    ASSERT_FALSE(read) << name;
    EXPECT_THAT(read.error(), HasSubstr("'" + name + "'"));
  }
}

TEST(TuningRecord, RefusesValuesOutsideTheirRange) {
  const struct {
    const char* field;
    Json value;
    const char* sentence;
  } kCases[] = {
      {"version", 2, "tuning record: field 'version' is not 1"},
      {"version", "1", "tuning record: field 'version' is not a 32-bit integer"},
      {"problem", "", "tuning record: field 'problem' is not a problem's text"},
      {"problem", 7, "tuning record: field 'problem' is not a string"},
      {"bucket", 0, "tuning record: field 'bucket' is not 1 or more"},
      {"bucket", 1e300, "tuning record: field 'bucket' is not a 64-bit integer"},
      {"bucket", std::uint64_t{1} << 63, "tuning record: field 'bucket' is not a 64-bit integer"},
      {"tokens", 0, "tuning record: field 'tokens' is not 1 to the bucket's 64"},
      {"tokens", 65, "tuning record: field 'tokens' is not 1 to the bucket's 64"},
      {"device", "", "tuning record: field 'device' is not a device's name"},
      {"sm_count", 0, "tuning record: field 'sm_count' is not 1 or more"},
      {"winner", Json::object(),
       "tuning record: field 'winner' is not valid (winner: field 'config' is not a string)"},
      {"winner", {{"config", ""}}, "tuning record: field 'winner' is not an object with a config"},
      {"winner", "tile=64x64x128", "tuning record: field 'winner' is not an object"},
      {"winner",
       {{"config", "c"}, {"median_us", "1"}},
       "tuning record: field 'winner' is not valid (winner: field 'median_us' is not a number)"},
      {"runner_up", Json::array(), "tuning record: field 'runner_up' is not an object"},
      {"default",
       {{"median_us", 1}},
       "tuning record: field 'default' is not valid (default: field 'config' is not a string)"},
      {"gain", "much", "tuning record: field 'gain' is not a number"},
      {"candidates",
       {{"timed", 0.5}},
       "tuning record: field 'candidates' is not valid (candidates: field 'timed' is not a 64-bit "
       "integer)"},
      {"conditions", 5, "tuning record: field 'conditions' is not an object"},
      {"baselines_us",
       {{"bf16", nullptr}},
       "tuning record: field 'baselines_us' is not valid (baselines_us: field 'bf16' is not a "
       "number)"},
      {"quantize_us", 7.5, "tuning record: field 'quantize_us' is not an object"},
      {"quantize_us",
       {{"a", "7"}},
       "tuning record: field 'quantize_us' is not valid (quantize_us: field 'a' is not a number)"},
      {"error", "small", "tuning record: field 'error' is not a number"},
      {"date", 20260131, "tuning record: field 'date' is not a string"},
  };
  for (const auto& c : kCases) {
    const auto read = parse_tuning_record(line_with(c.field, c.value));
    ASSERT_FALSE(read) << c.sentence;
    EXPECT_EQ(read.error(), c.sentence);
  }
}

TEST(TuningRecord, RefusesWhatIsNoObject) {
  for (const char* line : {"", "{", "[]", "null", "1", "{\"version\":1}x", "\xff"}) {
    EXPECT_FALSE(parse_tuning_record(line)) << line;
  }
  const std::string whole = to_json_line(make_full_record());
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(parse_tuning_record(whole.substr(0, bytes))) << bytes;
  }
}

TEST(TuningRecord, ANumberThatIsNotFiniteIsNotReadBack) {
  TuningRecord record = make_full_record();
  record.winner.median_us = std::nan("");
  EXPECT_FALSE(parse_tuning_record(to_json_line(record)));
}

}  // namespace
}  // namespace octile::cache
