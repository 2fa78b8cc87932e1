// Records of measurements: a written one is read again, any other text is refused in a sentence,
// and the checked-in ones are records.
#include "runtime/measure/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/cache_testing.h"

namespace octile {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Record example() {
  DeviceSpec device;
  device.full_name = "NVIDIA H200";
  Record record = new_record("octile bench", device, "13.0");
  record.commit = "9dccfe1";
  record.what = "gemm m=64 n=7168 k=2048";
  record.part = "step";
  record.protocol = replay_protocol(6, true);
  record.unit = "us";
  record.values = measured({5.5, 5.25, 6, 5.75, 5.5, 5.5});
  record.peers = {{"cublaslt", "13.1", measured({11, 10.5, 12, 11.5, 11, 11}), {}},
                  {"deepgemm", "", Measured{{}, 7, Interval{6.5, 7.5}}, Measured{{}, 1.25, {}}}};
  record.check = "within tolerance";
  record.details = {{"config", "64x128"}, {"bytes", 14680064}, {"tuned", true}};
  return record;
}

TEST(Record, WhatIsWrittenIsReadAgain) {
  Record other = example();
  other.unit = kRatioUnit;
  other.values = {{}, 1.5, {}};
  other.peers = {{"bf16", "", {}, {}}};
  other.ok = false;
  Record third = example();
  third.peers = {{"cublaslt", "", {}, Measured{{}, 1.5, {}}}};
  const std::string text =
      to_json_line(example()) + "\n\n" + to_json_line(other) + "\n" + to_json_line(third) + "\n";
  const auto records = parse_records(text, "a.jsonl");
  ASSERT_TRUE(records) << records.error().message;
  ASSERT_EQ(records->size(), 3U);
  EXPECT_EQ(records->front(), example());
  EXPECT_EQ((*records)[1], other);
  EXPECT_EQ(records->back(), third);
}

TEST(Record, TheMedianOfSamplesAndTheirIntervalAreComputed) {
  const Measured values = measured({3, 1, 2});
  EXPECT_EQ(values.median, 2);
  EXPECT_EQ(values.interval, (Interval{1, 3}));
}

TEST(Record, TheRatioIsOfTheRoundsIfTheyAreKnown) {
  const Record record = example();
  EXPECT_EQ(ratio_of(record, record.peers[0]).median, 2);
  EXPECT_EQ(ratio_of(record, record.peers[1]).median, 1.25) << "the peer states it";
  Record without = record;
  without.peers[1].ratio.reset();
  EXPECT_NEAR(ratio_of(without, without.peers[1]).median, 7 / 5.5, 1e-12);
  without.unit = kRatioUnit;
  without.peers[1].values.reset();
  EXPECT_EQ(ratio_of(without, without.peers[1]).median, 5.5) << "the record's own values";
}

TEST(Record, WithoutAPeerThereAreNoValuesOfOne) {
  Record record = example();
  EXPECT_EQ(first_peer_values(record), record.peers[0].values);
  record.peers[0].values.reset();
  EXPECT_TRUE(std::isnan(first_peer_values(record).median));
  record.peers.clear();
  EXPECT_TRUE(std::isnan(first_peer_values(record).median));
}

TEST(Record, NumbersHaveSixDigits) {
  Record record = example();
  record.values = {{}, 1.23456789, {}};
  EXPECT_THAT(to_json_line(record), HasSubstr("\"median\":1.23457"));
}

struct Wrong {
  const char *from, *to;  // in the example's line
  const char* sentence;
};

TEST(Record, WhatIsNoRecordIsRefusedInASentence) {
  const std::string line = to_json_line(example());
  for (const Wrong& wrong : {
           Wrong{"{\"record\"", "[\"record\"", "the line is not a JSON object"},
           {"\"record\":1", "\"record\":2", "record is 2; allowed: 1"},
           {"\"record\":1,", "", "record is null; allowed: 1"},
           {"\"tool\":\"octile bench\",", "", "tool is missing; allowed: a text"},
           {"\"unit\":\"us\"", "\"unit\":7", "unit is 7; allowed: a text"},
           {"\"unit\":\"us\"", "\"unit\":\"\"", "unit is \"\"; allowed: a text"},
           {"\"capability\"", "\"compute\"", "card.compute is not a field of a record"},
           {"\"l2\":\"cold\"", "\"l2\":\"hot\"", "protocol.l2 is \"hot\"; allowed: cold, warm"},
           {"\"rounds\":6", "\"rounds\":0", "protocol.rounds is 0; allowed: 1 to 1000000"},
           {"\"interleaved\":true", "\"interleaved\":1",
            "protocol.interleaved is 1; allowed: true or false"},
           {"\"samples\":[5.5", "\"samples\":[\"5.5\"", "samples is [\"5.5\","},
           {"\"samples\":[5.5", "\"samples\":[null", "allowed: an array of numbers"},
           {"\"samples\":[5.5,5.25,6.0,5.75,5.5,5.5],", "", "median is missing; allowed: a number"},
           {"[6.5,7.5]", "[7.5,6.5]",
            "peers[1].interval is [7.5,6.5]; allowed: two numbers, the lower first"},
           {"\"ratio\":{\"median\":1.25}", "\"ratio\":1.25",
            "peers[1].ratio is 1.25; allowed: an object"},
           {"\"name\":\"deepgemm\",", "", "peers[1].name is missing; allowed: a text"},
           {"\"details\":{", "\"details\":{\"x\":[],",
            "allowed: an object of texts, numbers, true and false"},
           {"\"ok\":true", "\"fine\":true", "ok is missing; allowed: true or false"},
           {"\"date\":\"2", "\"date\":\"on 2", "; allowed: 2026-11-26 or 2026-11-26T20:15:00Z"},
           {"\"unit\":\"us\"", "\"unit\":\"ratio\"", "peers[0].samples is not a field of a record"},
       }) {
    std::string bad = line;
    const std::size_t at = bad.find(wrong.from);
    ASSERT_NE(at, std::string::npos) << wrong.from;
    bad.replace(at, std::string(wrong.from).size(), wrong.to);
    const auto records = parse_records(line + "\n" + bad + "\n", "a.jsonl");
    ASSERT_FALSE(records) << bad;
    EXPECT_EQ(records.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(records.error().message, HasSubstr("a.jsonl line 2: "));
    EXPECT_THAT(records.error().message, HasSubstr(wrong.sentence));
  }
}

TEST(Record, FilesGrow) {
  const cache::testing::TempDir folder;
  const std::string path = folder / "records.jsonl";
  EXPECT_TRUE(read_records(path)->empty()) << "there is no file";
  ASSERT_TRUE(append_records(path, {example()}));
  ASSERT_TRUE(append_records(path, {example(), example()}));
  EXPECT_EQ(read_records(path)->size(), 3U);
  EXPECT_FALSE(append_records(folder / "none/records.jsonl", {example()}));
  EXPECT_FALSE(read_records(folder / "")) << "a folder";
}

// Each file of docs/records is of one card and one commit.
TEST(Record, TheCheckedInOnesAreRecords) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(OCTILE_SOURCE_DIR "/docs/records")) {
    if (entry.path().extension() != ".jsonl") continue;
    ++files;
    const auto records = read_records(entry.path().string());
    ASSERT_TRUE(records) << records.error().message;
    ASSERT_FALSE(records->empty()) << entry.path();
    for (const Record& record : *records) {
      EXPECT_EQ(record.card.name, records->front().card.name) << entry.path();
      EXPECT_EQ(record.commit, records->front().commit) << entry.path();
      EXPECT_TRUE(record.ok) << entry.path() << ": " << record.what;
    }
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace octile
