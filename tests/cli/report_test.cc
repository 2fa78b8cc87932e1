// octile report: from files of records to a page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;

class Report : public ::testing::Test {
 protected:
  static std::string shipped(const std::string& name) {
    return std::string(OCTILE_SOURCE_DIR) + "/runtime/tuned/" + name;
  }
  std::string refused(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "report");
    arguments.insert(arguments.end(), {"-o", (shell_.folder() / "page.html").string()});
    const Outcome outcome = shell_.run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_FALSE(fs::exists(shell_.folder() / "page.html"));
    return outcome.err;
  }
  std::string file(const std::string& text) const {
    const fs::path path = shell_.folder() / "records.jsonl";
    std::ofstream(path) << text;
    return path.string();
  }
  // Returns the record of a GEMM that no model has.
  static std::string of_card(const std::string& name) {
    return R"({"version": 1, "problem": "gemm m=? n=8 k=128", "bucket": 1, "tokens": 1, "device": ")" +
           name + R"(", "sm_count": 132, "winner": {"config": "tile"}})";
  }
  Shell shell_;
};

TEST_F(Report, ShowsTheLayersOfAModel) {
  const Outcome outcome =
      shell_.run({"report", shipped("h200.jsonl"), "--model", "deepseek-v3", "-o", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("<h1>deepseek-v3 on NVIDIA H200</h1>"));
  EXPECT_THAT(outcome.out, HasSubstr("<td>self_attn.o_proj"));
  EXPECT_LT(outcome.out.size(), 1'600'000);
}

TEST_F(Report, RefusesWhatItCannotShow) {
  EXPECT_THAT(refused({shipped("h100.jsonl"), shipped("h200.jsonl")}),
              HasSubstr("2 cards; --device chooses one of h100, h200"));
  EXPECT_THAT(refused({shipped("h100.jsonl"), "--device", "h200"}), HasSubstr("allowed: h100"));
  EXPECT_THAT(refused({file("")}), HasSubstr("has no record"));
  EXPECT_THAT(refused({file("\n{}\n")}), HasSubstr("records.jsonl:2: "));
  EXPECT_THAT(refused({shipped("h100.jsonl"), "--tp", "8"}), HasSubstr("without --model"));
  EXPECT_THAT(refused({file(of_card("a card that nobody knows")), "--model", "deepseek-v3"}),
              HasSubstr("no record is of its layers"));
}

// A folder that is not a cache's has its files of records, the compressed ones too, and no others.
TEST_F(Report, TakesTheRecordsInAFolder) {
  const fs::path folder = shell_.folder() / "records";
  fs::create_directories(folder);
  std::ofstream(folder / "a.jsonl") << of_card("h100") << "\n";
  std::ofstream(folder / "b.jsonl") << of_card("h200") << "\n";
  std::ofstream(folder / "notes.txt") << "no record\n";
  std::ofstream(folder / ".c.jsonl") << "no record\n";
  EXPECT_THAT(refused({folder.string()}), HasSubstr("2 cards; --device chooses one of h100, h200"));
  const fs::path empty = shell_.folder() / "empty";
  fs::create_directories(empty);
  EXPECT_THAT(refused({empty.string()}), HasSubstr("has no records"));
}

TEST_F(Report, HasAPageWithoutAName) {
  const fs::path before = fs::current_path();
  fs::current_path(shell_.folder());
  const Outcome outcome = shell_.run({"report", shipped("h200.jsonl"), "--model", "llama-3.2-1b"});
  fs::current_path(before);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(shell_.folder() / "octile.html"));
}

TEST_F(Report, OfAModelWithoutRecordsHasEstimates) {
  const Outcome outcome =
      shell_.run({"report", file(of_card("h100")), "--model", "llama-3.2-1b", "-o", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the page has estimates alone: --model is llama-3.2-1b, and "
                                     "no record is of its layers"));
  EXPECT_THAT(outcome.out, HasSubstr("<small>estimated</small>"));
  EXPECT_THAT(outcome.out, HasSubstr("Default and tuned times are not shown"));
}

// The record of a layer is the truth about it, and a row of the page.
TEST_F(Report, TakesTheRecordsOfLayers) {
  const std::string other = std::regex_replace(layer_record(), std::regex("llama-3.2-1b"), "other");
  const Outcome outcome = shell_.run({"report", file(layer_record() + other), "--model",
                                      "llama-3.2-1b", "--mode", "decode", "-o", "-"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("<td><span class=\"even\">even</span><td>measured"));
  EXPECT_THAT(outcome.out, HasSubstr("1 measurement on NVIDIA H100 80GB HBM3. In decode"));
  EXPECT_THAT(outcome.out, HasSubstr("<td>layer model=llama-3.2-1b layer=self_attn.qkv_proj"));
  EXPECT_THAT(outcome.out, HasSubstr("<h2 id=\"verdict\">Does FP8 pay, estimated</h2>"));
}

}  // namespace
}  // namespace octile::tests
