// octile tune without a GPU: what there is to search, and files of problems. On the fake driver,
// which computes nothing, every candidate is called wrong and nothing is kept. A search compiles
// dozens of kernels, so NVRTC is a fake there; tune_devices_test.cc has a search with NVRTC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/cli/fifo.h"
#include "tests/support/tuning_testing.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;

TEST(TuneExplain, CountsWhatEachConstraintRemovedAndRanksTheRest) {
  const Shell shell;
  const Outcome outcome = shell.run({"tune", "--gemm", "?x7168x2048", "--tokens", "64,4096",
                                     "--device", "h200", "--explain", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = outcome.json();
  EXPECT_EQ(document.at("device"), "h200");
  ASSERT_EQ(document.at("tasks").size(), 2);
  for (const json& task : document.at("tasks")) {
    std::size_t removed = 0;
    for (const auto& [name, count] : task.at("removed").items())
      removed += count.get<std::size_t>();
    EXPECT_EQ(removed + task.at("admitted").get<std::size_t>(), task.at("enumerated"));
    EXPECT_TRUE(task.at("removed").contains("fits_shared_memory"));
    ASSERT_GT(task.at("shortlist").size(), 10);
    for (const json& candidate : task.at("shortlist")) EXPECT_GT(candidate.at("estimate_us"), 0.0);
  }
  EXPECT_NE(document.at("tasks")[0].at("shortlist")[0], document.at("tasks")[1].at("shortlist")[0]);
}

TEST(TuneExplain, SaysInWordsWhyCandidatesWereRemoved) {
  const Outcome outcome = Shell().run(
      {"tune", "--gemm", "64x7168x2048", "--device", "h100", "--explain", "--list", "--wide"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("fits_registers"));
  EXPECT_THAT(outcome.out, HasSubstr("opt-in shared memory"));
  EXPECT_THAT(outcome.out, HasSubstr("shortlist, the default first"));
}

std::vector<std::string> tasks_of(const Outcome& outcome) {
  std::vector<std::string> all;
  const json document = outcome.json();
  for (const json& task : document.at("tasks"))
    all.push_back(task.at("problem").get<std::string>() + " " +
                  std::to_string(task.at("tokens").get<int>()));
  return all;
}

TEST(TuneExplain, ReadsAFileOfProblems) {
  const Shell shell;
  const std::string path = (shell.folder() / "problems.txt").string();
  std::ofstream(path) << "# two GEMMs, a quantiser\n"
                      << "?x576x1152   # a tail\n\n"
                      << "7x768x2048\n"
                      << "gemm m=? n=576 k=1152 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 "
                         "promote=128\n"
                      << "quantize rows=9 cols=576 x=bf16 q=e4m3:1x128 out=row\n";
  const Outcome outcome = shell.run({"tune", "--problem-file", path, "--tokens", "1,200",
                                     "--device", "h200", "--explain", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string tail = " a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 ";
  EXPECT_THAT(tasks_of(outcome), ::testing::ElementsAre("gemm m=? n=576 k=1152" + tail + "1",
                                                        "gemm m=? n=576 k=1152" + tail + "200",
                                                        "gemm m=? n=768 k=2048" + tail + "7",
                                                        "quantize rows=? cols=576 x=bf16 "
                                                        "q=e4m3:1x128 out=row 9"))
      << "each once";
  std::ofstream(path) << "64x576\n";
  const Outcome bad = shell.run({"tune", "--problem-file", path, "--device", "h200", "--explain"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("problems.txt:1: "));
}

TEST(TuneExplain, AQuantiserHasConstraintsAndAShortlist) {
  const Shell shell;
  const Outcome outcome = shell.run({"tune", "--quantize", "?x7168", "--tokens", "64,4096",
                                     "--device", "h200", "--explain", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = outcome.json();
  ASSERT_EQ(document.at("tasks").size(), 2);
  for (const json& task : document.at("tasks")) {
    EXPECT_THAT(task.at("problem"), HasSubstr("quantize rows=? cols=7168"));
    EXPECT_TRUE(task.at("removed").contains("registers_hold_tile"));
    EXPECT_GT(task.at("shortlist").size(), 10);
    EXPECT_THAT(task.at("shortlist")[0].at("config"), HasSubstr("per_sm="));
  }
  EXPECT_NE(document.at("tasks")[0].at("shortlist")[0], document.at("tasks")[1].at("shortlist")[0]);
  const Outcome words =
      shell.run({"tune", "--problem", "quantize rows=128 cols=7168 x=bf16 q=e4m3:128x128 out=both",
                 "--device", "h200", "--explain", "--list", "--wide"});
  ASSERT_EQ(words.exit_code, 0) << words.err;
  EXPECT_THAT(words.out, HasSubstr("out=both at 128 tokens"));
  EXPECT_THAT(words.out, HasSubstr("ptxas 13.0 spills"));
  EXPECT_THAT(words.out, HasSubstr("shortlist, the default first"));
}

TEST(TuneExplain, AQuantiserWithoutOperandsIsRefused) {
  const std::string amax = "amax rows=? cols=7168 x=bf16 q=e4m3:tensor";
  const Outcome outcome = Shell().run({"tune", "--problem", amax, "--device", "h200", "--explain"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no operands for a maximum alone"));
  EXPECT_THAT(outcome.err, HasSubstr(amax));
  const Outcome stated = Shell().run(
      {"tune", "--quantize", "64x7168", "--tokens", "1", "--device", "h200", "--explain"});
  EXPECT_EQ(stated.exit_code, 2);
  EXPECT_THAT(stated.err, HasSubstr("--tokens is given, but the problem states rows=64"));
}

// docs/problems.md: `tokens` are the counts worth measuring, and --tokens replaces them.
TEST(TuneExplain, AModelIsItsProblemsAtItsTokens) {
  const Shell shell;
  const std::string path = (shell.folder() / "model.json").string();
  std::ofstream(path) << R"({"model": "M", "source": "S", "tokens": [3, 4096],
    "gemms": [{"name": "o", "n": 512, "k": 1024, "split": "k"}],
    "experts": {"count": 8, "per_token": 2, "gate_up": {"n": 512, "k": 512},
                "down": {"n": 512, "k": 256}}})";
  const auto tokens = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tune", "--model", path, "--device", "h200", "--explain", "--json"});
    const Outcome outcome = shell.run(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<int> all;
    const json document = outcome.json();
    for (const json& task : document.at("tasks")) {
      const bool is_gemm = task.at("problem").get<std::string>().starts_with("gemm");
      all.push_back((is_gemm ? 1 : -1) * task.at("tokens").get<int>());
    }
    return all;
  };
  // The quantisers are those of the activation at its counts and of the weight at its rows.
  EXPECT_THAT(tokens({}), ::testing::ElementsAre(3, 4096, -3, -4096, -512));
  EXPECT_THAT(tokens({"--ep", "4"}), ::testing::Contains(6));
  EXPECT_THAT(tokens({"--tokens", "16"}), ::testing::ElementsAre(16, -16, -512));
}

TEST(TuneExplain, AModelIsALineForEachProblemOfALayer) {
  Shell shell;
  shell.set("COLUMNS", "160");
  const Outcome outcome =
      shell.run({"tune", "--model", "deepseek-v3", "--explain", "--device", "h200"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("questions for h200 need about "));
  const auto layers = matches(outcome.out, "^  (\\S+) +62 .* 15 +1-16384 ");
  EXPECT_THAT(layers, ::testing::IsSupersetOf({"self_attn.o_proj", "self_attn.q_b_proj"}));
  EXPECT_THAT(outcome.out, HasSubstr("self_attn.o_proj, activation"));
}

// A pipe cannot be read twice.
TEST(TuneExplain, FilesMayBePipes) {
  Shell shell;
  const auto run = [&](const std::string& option, const std::string& path,
                       const std::string& content) {
    const Fifo fifo(shell.folder() / "fifo", content);
    const bool by_stdin = path == "-" || path == "/dev/stdin";
    if (by_stdin) shell.redirect(0, fifo.path());
    return shell.run({"tune", option, by_stdin ? path : fifo.path(), "--tokens", "64", "--device",
                      "h200", "--explain", "--json"});
  };
  const std::string model =
      read_file(fs::path(OCTILE_SOURCE_DIR) / "tools/models/configs/llama-3-8b.json");
  for (const std::string path : {"", "/dev/stdin", "-"}) {
    const Outcome problems = run("--problem-file", path, "?x512x1024\n");
    EXPECT_EQ(problems.exit_code, 0) << path << problems.err;
    EXPECT_EQ(tasks_of(problems).size(), 1);
    const Outcome layers = run("--model", path, model);
    EXPECT_EQ(layers.exit_code, 0) << path << layers.err;
    EXPECT_GT(tasks_of(layers).size(), 1);
  }
}

// Rows of a summary show what tells them apart, however narrow the terminal is.
TEST(TuneExplain, RowsOfASummaryDiffer) {
  Shell shell;
  shell.set("COLUMNS", "80");
  for (const std::vector<std::string>& work :
       {std::vector<std::string>{"--quantize", "?x7168"}, {"--gemm", "?x7168x2048"}}) {
    std::vector<std::string> arguments{"tune",     "--tokens", "1,2,64,4096,16384",
                                       "--device", "h200",     "--explain"};
    arguments.insert(arguments.end(), work.begin(), work.end());
    const Outcome outcome = shell.run(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(matches(outcome.out, "^  [?]x7168\\S*(?: q=\\S+ out=\\S+)? +([0-9]+) "),
                ::testing::UnorderedElementsAre("1", "2", "64", "4096", "16384"));
  }
}

TEST(TuneExplain, TheTokensOfAWeightGradientAreInK) {
  const Shell shell;
  const std::string gradient =
      "gemm m=7168 n=2048 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128";
  for (const std::vector<std::string>& form :
       {std::vector<std::string>{"--gemm", "4096x7168x2048", "--passes", "wgrad"},
        {"--gemm", "?x7168x2048", "--passes", "wgrad", "--tokens", "4096"},
        {"--problem", gradient, "--tokens", "4096"}}) {
    std::vector<std::string> arguments{"tune", "--device", "h200", "--explain", "--json"};
    arguments.insert(arguments.end(), form.begin(), form.end());
    const Outcome outcome = shell.run(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(tasks_of(outcome), ::testing::ElementsAre(gradient + " 4096"));
    const json task = outcome.json().at("tasks").at(0);
    EXPECT_GT(task.at("shortlist").size(), 5);
  }
}

TEST(TuneExplain, PassesOfLayersAreTasksOnce) {
  const Shell shell;
  const std::string path = (shell.folder() / "problems.txt").string();
  std::ofstream(path) << "?x512x1024\n7x1024x512\n"
                      << "quantize rows=9 cols=576 x=bf16 q=e4m3:1x128 out=row\n";
  const Outcome outcome =
      shell.run({"tune", "--problem-file", path, "--tokens", "7,64", "--passes",
                 "fprop,dgrad,wgrad,fprop", "--device", "h200", "--explain", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string forward = " a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 ";
  const std::string gradient = " a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128 ";
  EXPECT_THAT(
      tasks_of(outcome),
      ::testing::ElementsAre(
          "gemm m=? n=512 k=1024" + forward + "7", "gemm m=? n=512 k=1024" + forward + "64",
          "gemm m=? n=1024 k=512" + forward + "7", "gemm m=? n=1024 k=512" + forward + "64",
          "gemm m=512 n=1024 k=?" + gradient + "7", "gemm m=512 n=1024 k=?" + gradient + "64",
          "gemm m=1024 n=512 k=?" + gradient + "7",
          "quantize rows=? cols=576 x=bf16 q=e4m3:1x128 out=row 9"));
}

TEST(TuneExplain, AModelsPassesAreThreeTimesItsGemms) {
  const Shell shell;
  const auto count = [&](const std::string& passes) {
    const Outcome outcome =
        shell.run({"tune", "--model", "llama-3-8b", "--recipe", "blockwise_hybrid", "--passes",
                   passes, "--tokens", "64", "--device", "h200", "--explain", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return std::ranges::count_if(tasks_of(outcome),
                                 [](const std::string& task) { return task.starts_with("gemm"); });
  };
  EXPECT_EQ(count("fprop,dgrad,wgrad"), 3 * count("fprop"));
}

class TuneOnTheFakeDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    shell.set("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH);
    shell.set("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH);
  }
  // Searches one task at 64 tokens and returns its decision, after checking that every candidate
  // is called wrong and nothing is kept.
  json expect_nothing_kept(const std::string& option, const std::string& shape,
                           const std::string& problem, const std::string& why) {
    const Outcome outcome =
        shell.run({"tune", option, shape, "--tokens", "64", "--budget", "200", "--json"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("no candidate for " + problem));
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_THAT(outcome.err, HasSubstr("1 question needs about "));
    const std::vector<json> lines = lines_of(outcome.out);
    EXPECT_EQ(lines.size(), 2) << "a line a question, and one of the run";
    EXPECT_EQ(lines.back().at("undecided"), 1);
    const json decision = lines.front();
    EXPECT_EQ(decision.at("outcome"), "none right");
    EXPECT_EQ(decision.at("served_by"), "cost model");
    EXPECT_EQ(decision.at("wrong").size(), decision.at("candidates").at("failed_verify"));
    EXPECT_GT(decision.at("wrong").size(), 10);
    for (const json& wrong : decision.at("wrong")) EXPECT_EQ(wrong.at("tokens"), 64);
    double known = 0;
    for (const json& seconds : decision.at("seconds_of")) known += seconds.get<double>();
    EXPECT_GT(decision.at("seconds_of").at("verify"), 0);
    EXPECT_LE(known, decision.at("seconds").get<double>());
    EXPECT_FALSE(fs::exists(shell.folder() / "cache" / "tuning.jsonl"));
    return decision;
  }

  static std::vector<json> lines_of(const std::string& text) {
    std::vector<json> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
  }

  Shell shell;
};

// It prints no verdict: the last line names the commands that have one.
TEST_F(TuneOnTheFakeDriver, AModelEndsWithTheCommandsThatSayWhetherFp8Pays) {
  const std::vector<std::string> command{"tune",     "--model", "llama-3.2-1b", "--mode", "decode",
                                         "--tokens", "64",      "--budget",     "0.001"};
  const Outcome outcome = shell.run(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("FP8 pay")));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("verdict")));
  EXPECT_THAT(outcome.err, ::testing::EndsWith(
                               "octile: whether FP8 pays: `octile shapes --estimate` says it by "
                               "these records, and `octile bench verdict` measures it; both take "
                               "this run's options of the model\n"));
}

// Each of them is found again by the second run, which asks no device.
TEST_F(TuneOnTheFakeDriver, WhatABudgetDoesNotReachIsListedWithWhatServesIt) {
  std::vector<std::string> command{"tune",   "--gemm",   "?x512x1024", "--tokens",
                                   "64,512", "--budget", "0.001"};
  const Outcome outcome = shell.run(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--budget gives 0 s, so the lightest may stay undecided"));
  EXPECT_THAT(outcome.err, HasSubstr("2 of 2 questions are undecided, served by: cost model 2"));
  EXPECT_THAT(matches(outcome.out, "^  -  .* ([0-9]+)  cost model$"),
              ::testing::UnorderedElementsAre("64", "512"));
  command.emplace_back("--quiet");
  const Outcome quiet = shell.run(command);
  EXPECT_EQ(quiet.out, "");
  EXPECT_THAT(quiet.err, ::testing::Not(HasSubstr("need about")));
}

// Nothing is written to D there, so no error is finite and only the stated interval is a question.
TEST_F(TuneOnTheFakeDriver, IntervalsAboveTheGreatestErrorAreNotSearched) {
  std::vector<std::string> command{"tune",     "--gemm", "?x512x1024",  "--tokens", "64",
                                   "--budget", "0.001",  "--max-error", "0.001"};
  const Outcome outcome = shell.run(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("1 of 1 questions are undecided"));
  EXPECT_THAT(
      matches(outcome.out, "^  \\S+ +64 +([0-9]+) +inf +- +- +error above 0.001(?:, not.*)?$"),
      ::testing::ElementsAre("128", "32", "64"));
  EXPECT_THAT(outcome.out, HasSubstr("a record serves problems of its own promote= alone"));
  command.emplace_back("--json");
  const json last = lines_of(shell.run(command).out).back();
  ASSERT_EQ(last.at("intervals").size(), 3);
  for (const json& interval : last.at("intervals")) {
    EXPECT_TRUE(interval.at("error").is_null());
    EXPECT_FALSE(interval.at("answers"));
  }
}

// A rank that died left its decision in a file of its own. The launcher's variable chooses the GPU.
TEST_F(TuneOnTheFakeDriver, TakesWhatOtherRanksHaveDecidedAndMergesIt) {
  const std::string problem =
      "gemm m=? n=512 k=1024 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  const std::string line =
      to_json_line(cache::testing::make_decision(problem, 64, "tile=64x64x128")) + "\n";
  const fs::path cache = shell.folder() / "cache";
  fs::create_directories(cache / "tuning.d");
  fs::permissions(cache, fs::perms(0700));
  fs::permissions(cache / "tuning.d", fs::perms(0700));
  std::ofstream(cache / "tuning.d/dead.jsonl") << line << line.substr(0, 40);
  fs::permissions(cache / "tuning.d/dead.jsonl", fs::perms(0644));
  const std::vector<std::string> command{"tune",     "--gemm", "?x512x1024",
                                         "--tokens", "64",     "--json"};
  shell.set("LOCAL_RANK", "1");
  const Outcome outcome = shell.run(command);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines.front().at("resumed"), true);
  EXPECT_EQ(lines.back().at("device"), "cuda:1");
  EXPECT_EQ(read_file(cache / "tuning.jsonl"), line);

  shell.set("LOCAL_RANK", "2");
  const Outcome beyond = shell.run(command);
  EXPECT_EQ(beyond.exit_code, 2);
  EXPECT_THAT(beyond.err,
              HasSubstr("LOCAL_RANK is 2, and 2 GPUs are visible; allowed: at most one"));
  shell.set("LOCAL_RANK", "1x");
  const Outcome bad = shell.run(command);
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("LOCAL_RANK is '1x'; allowed: the number of a rank on this host"));
}

TEST_F(TuneOnTheFakeDriver, CallsEveryCandidateWrongAndKeepsNothing) {
  const json decision =
      expect_nothing_kept("--gemm", "?x512x1024", "gemm m=? n=512 k=1024", "operands of seed");
  for (const json& wrong : decision.at("wrong"))
    EXPECT_THAT(wrong.at("config"), HasSubstr("tile="));
}

TEST_F(TuneOnTheFakeDriver, CallsEveryQuantiserWrongToo) {
  expect_nothing_kept("--quantize", "?x384", "quantize rows=? cols=384",
                      "bytes differ from the host reference");
}

TEST_F(TuneOnTheFakeDriver, ABenchmarkWhoseSearchFindsNothingRightFails) {
  const Outcome outcome = shell.run({"bench", "--gemm", "64x512x1024", "--search", "600"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has no kernel to offer: none right"));
}

}  // namespace
}  // namespace octile::tests
