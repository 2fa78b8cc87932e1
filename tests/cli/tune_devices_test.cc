// octile tune on several GPUs, in parts and in ranks: --devices, --part, --run and what launchers
// say, on the fake driver and, except for one search, with the fake NVRTC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "tests/cli/command.h"
#include "tests/support/tuning_testing.h"

namespace octile::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProblem =
    "gemm m=? n=512 k=1024 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

class TuneOnSeveral : public ::testing::Test {
 protected:
  void SetUp() override {
    shell.set("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH);
    shell.set("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH);
  }

  static std::vector<std::string> command(const std::vector<std::string>& more) {
    std::vector<std::string> all{"tune", "--gemm", "?x512x1024", "--tokens", "64,512"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Outcome run(const std::vector<std::string>& more) const { return shell.run(command(more)); }
  void refuses(const std::vector<std::string>& more, const std::string& sentence) const {
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.exit_code, 2) << sentence;
    EXPECT_THAT(outcome.err, HasSubstr(sentence));
    EXPECT_EQ(outcome.out, "");
  }
  void needs_a_gpu(const std::vector<std::string>& more) const {
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("`octile tune` needs a GPU: "));
    EXPECT_EQ(outcome.out, "");
  }
  // Writes the records of the cache folder, by default the decisions at both token counts.
  void record_all(const std::vector<cache::TuningRecord>& records = {
                      cache::testing::make_decision(kProblem, 64, "tile=64x64x128"),
                      cache::testing::make_decision(kProblem, 512, "tile=64x64x128")}) const {
    const fs::path cache = shell.folder() / "cache";
    fs::create_directories(cache);
    fs::permissions(cache, fs::perms(0700));
    std::ofstream file(cache / "tuning.jsonl");
    for (const cache::TuningRecord& record : records) file << to_json_line(record) << "\n";
    file.close();
    fs::permissions(cache / "tuning.jsonl", fs::perms(0644));
  }

  Shell shell;
};

TEST_F(TuneOnSeveral, WhatIsNoGpuIsRefused) {
  refuses({"--devices", "0,0"}, "--devices is '0,0', which names GPU 0 twice; allowed: each once");
  refuses({"--devices", "0,x"}, "--devices is '0,x'; allowed: all, or numbers of GPUs with commas");
  refuses({"--devices", "1,2"},
          "--devices is '1,2', and the GPUs that are visible have the numbers 0 to 1; allowed: "
          "those, or all");
  refuses({"--devices", "all", "--device", "cuda:0"},
          "--device is given with --devices; allowed: one of the two");
  refuses({"--devices", "all", "--explain"},
          "--devices is given with --explain, which searches nothing");
  shell.set("FAKE_CUDA_DEVICES", "h200,h100");
  refuses({"--devices", "all"},
          "cuda:0 is h200 with 132 SMs, but cuda:1 is h100 with 132; allowed: GPUs of one kind");
  shell.set("FAKE_CUDA_DEVICES", "none");
  needs_a_gpu({"--devices", "all"});
  shell.set("OCTILE_LIBCUDA", "/nonexistent/libcuda.so.1");
  needs_a_gpu({"--devices", "0"});
}

TEST_F(TuneOnSeveral, ARankOfALauncherHasItsGpuAlready) {
  record_all();
  shell.set("LOCAL_RANK", "0");
  refuses({"--devices", "all"},
          "--devices is given in a rank of a launcher (LOCAL_RANK is 0), which starts a process "
          "for each GPU; allowed: one of the two");
  shell.set("LOCAL_WORLD_SIZE", "1");
  EXPECT_EQ(run({"--devices", "all"}).exit_code, 0) << "the only rank of this host";
}

TEST_F(TuneOnSeveral, AScriptOfSlurmIsNoRankAndAStepIs) {
  record_all();
  shell.set("SLURM_LOCALID", "0");
  shell.set("SLURM_NTASKS_PER_NODE", "8");
  EXPECT_EQ(run({"--devices", "all"}).exit_code, 0);
  shell.set("SLURM_STEP_ID", "0");
  refuses({"--devices", "all"}, "in a rank of a launcher (SLURM_LOCALID is 0)");
  shell.set("SLURM_STEP_TASKS_PER_NODE", "1(x2)");
  EXPECT_EQ(run({"--devices", "all"}).exit_code, 0);
}

TEST_F(TuneOnSeveral, WhatIsDecidedIsReportedAsByOneProcess) {
  record_all();
  const Outcome one = run({});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const Outcome several = run({"--devices", "0,1"});
  EXPECT_EQ(several.exit_code, 0) << several.err;
  EXPECT_EQ(several.out, std::regex_replace(one.out, std::regex("^cuda:0 "), "cuda:0,cuda:1 "));
  const Outcome document = run({"--devices", "1", "--json"});
  const auto lines = lines_of(document.out);
  ASSERT_EQ(lines.size(), 3U) << document.out;
  EXPECT_EQ(lines.at(0).at("resumed"), true);
  EXPECT_EQ(lines.at(2).at("device"), "cuda:1");
  EXPECT_EQ(lines.at(2).at("undecided"), 0);
}

TEST_F(TuneOnSeveral, WhatABudgetDoesNotReachIsListedOnce) {
  const Outcome outcome = run({"--devices", "all", "--budget", "0.001"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("octile: 2 questions need about "), HasSubstr(" on 2 GPUs and "),
                    HasSubstr("2 of 2 questions are undecided")));
  EXPECT_THAT(matches(outcome.out, "^  -  .* ([0-9]+)  cost model$"),
              ::testing::UnorderedElementsAre("64", "512"));
  EXPECT_EQ(matches(outcome.err, "(need about)").size(), 1U);
}

TEST_F(TuneOnSeveral, AProcessThatDiesIsNamed) {
  shell.set("FAKE_CUDA_KILLS_USERS_OF", "1");
  const std::string named =
      "octile: the process of cuda:1 \\([0-9]+\\) was ended by signal 9 \\(Killed\\)\n";
  const Outcome open = run({"--devices", "all", "--budget", "0.001"});
  EXPECT_EQ(open.exit_code, 1);
  EXPECT_THAT(open.err, ::testing::ContainsRegex(named));
  EXPECT_THAT(open.err, HasSubstr("1 of 2 processes failed, and 2 questions are undecided"));
  record_all();
  const Outcome decided = run({"--devices", "1,0"});
  EXPECT_EQ(decided.exit_code, 0) << decided.err;
  EXPECT_THAT(decided.err, ::testing::ContainsRegex(named));
  const Outcome none = run({"--devices", "1"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("the processes of all GPUs have ended"));
}

TEST_F(TuneOnSeveral, QuestionsWithoutARightCandidateFailOnce) {
  shell.set("OCTILE_LIBNVRTC", "");  // There is one candidate, which NVRTC itself compiles.
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const Outcome outcome =
      shell.run({"tune", "--problem", "quantize rows=? cols=16 x=bf16 q=e4m3:row out=row",
                 "--tokens", "64,128", "--devices", "all", "--json", "--budget", "200"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("gives correct results"));
  const auto lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 3U) << outcome.out;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(lines[i].at("outcome"), "none right");
    EXPECT_EQ(lines[i].at("wrong").size(), 1U) << "as the process knew that tried";
    EXPECT_EQ(lines[i].at("served_by"), "cost model");
  }
  EXPECT_EQ(lines.back().at("device"), "cuda:0,cuda:1");
  EXPECT_THAT(matches(outcome.err, " at ([0-9]+) tokens, operands of seed 1: .* is wrong"),
              ::testing::UnorderedElementsAre("64", "128"));
}

// The library's own set has no record of an H20.
TEST_F(TuneOnSeveral, RefreshingDecidesWhatTheRecordsSay) {
  shell.set("FAKE_CUDA_DEVICES", "h20,h20");
  const Outcome fresh = shell.run({"tune", "--refresh", "--devices", "all"});
  EXPECT_EQ(fresh.exit_code, 0) << fresh.err;
  EXPECT_THAT(fresh.out, HasSubstr("every record for cuda:0,cuda:1 timed the kernel of today"));
  auto record = cache::testing::make_decision(kProblem, 64, "tile=64x64x128", "h20", 78);
  record.source_digest = std::string(32, '0');
  record_all({record});
  const auto old = lines_of(
      shell.run({"tune", "--refresh", "--devices", "all", "--budget", "0.001", "--json"}).out);
  ASSERT_EQ(old.size(), 2U);
  EXPECT_EQ(old.front().at("problem"), kProblem);
  EXPECT_EQ(old.front().at("outcome"), "out of time") << "the record of before decides nothing";
  EXPECT_EQ(old.back().at("undecided"), 1);
}

// ---- parts

TEST_F(TuneOnSeveral, PartsTogetherHaveEachQuestionOnce) {
  const auto explained = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"tune",     "--gemm",    "?x7168x2048", "--tokens",
                                 "1,64,512", "--passes",  "fprop,wgrad", "--device",
                                 "h200",     "--explain", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    std::multiset<std::string> tasks;
    const json document = shell.run(all).json();
    for (const json& task : document.at("tasks"))
      tasks.insert(task.at("problem").get<std::string>() + task.at("tokens").dump());
    return tasks;
  };
  const auto all = explained({});
  std::multiset<std::string> together;
  for (const char* part : {"1/3", "2/3", "3/3"}) {
    const auto some = explained({"--part", part});
    EXPECT_EQ(some.size(), 2U);
    together.insert(some.begin(), some.end());
  }
  EXPECT_EQ(together, all);
}

TEST_F(TuneOnSeveral, APartSaysHowToMerge) {
  record_all();
  const Outcome outcome = run({"--part", "2/2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("part 2/2; once all parts are decided, `octile tune "),
                                 HasSubstr("/cache/tuning.jsonl and of the other parts")));
  const Outcome empty = run({"--part", "1/5"});
  EXPECT_EQ(empty.exit_code, 0) << empty.err;
  EXPECT_THAT(empty.err, HasSubstr("part 1/5 has none of the questions"));
  for (const char* part : {"0/2", "3/2", "1", "a/b", "1/2x"})
    refuses({"--part", part},
            std::string("--part is '") + part + "'; allowed: I/N with 1 <= I <= N, such as 1/4");
  const Outcome refresh = shell.run({"tune", "--refresh", "--part", "1/2"});
  EXPECT_EQ(refresh.exit_code, 2);
  EXPECT_THAT(refresh.err, HasSubstr("--part is given with --refresh"));
}

// ---- ranks

TEST_F(TuneOnSeveral, CoresAreDividedBetweenTheRanksOfAHost) {
  const auto cores = [&] {
    const Outcome outcome = shell.run(
        {"tune", "--model", "llama-3-8b", "--tokens", "64", "--device", "h200", "--explain"});
    const auto found = matches(outcome.out, " on ([0-9]+) cores$");
    return found.size() == 1 ? std::stoul(*found.begin()) : 0U;
  };
  const auto all = cores();
  EXPECT_EQ(all, std::thread::hardware_concurrency());
  for (const auto& [rank, count] :
       {std::pair("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        std::pair("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        std::pair("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        std::pair("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")}) {
    shell.set(rank, "0");
    EXPECT_EQ(cores(), all) << rank << " alone says no count";
    shell.set(count, "2");
    EXPECT_EQ(cores(), std::max<std::size_t>(1, all / 2)) << count;
    shell.set(count, "1000");
    EXPECT_EQ(cores(), 1U) << count;
    shell.set(rank, "");
  }
  shell.set("LOCAL_RANK", "0");
  shell.set("LOCAL_WORLD_SIZE", "many");
  refuses({}, "LOCAL_WORLD_SIZE is 'many'; allowed: the number of ranks on this host, from 1");
}

TEST_F(TuneOnSeveral, RanksThatDecideAgainNeedAName) {
  refuses({"--run", "a"}, "--run is given without --force or --refresh");
  refuses({"--force", "--run", "a b"}, "--run is 'a b'; allowed: at most 64 letters");
  shell.set("LOCAL_RANK", "1");
  shell.set("LOCAL_WORLD_SIZE", "2");
  refuses({"--force"},
          "--force is given in one of 2 ranks, which would each decide everything again; "
          "allowed: with --run and a new name");
}

// The records that are there decide nothing in a run with a name, and its own do.
TEST_F(TuneOnSeveral, ANamedRunGoesOnUnderItsName) {
  record_all();
  const Outcome outcome = run({"--force", "--run", "again", "--budget", "0.001", "--devices", "0"});
  EXPECT_THAT(outcome.err, HasSubstr("2 of 2 questions are undecided"));
  EXPECT_THAT(run({"--budget", "0.001"}).err, Not(HasSubstr("undecided")));
}

}  // namespace
}  // namespace octile::tests
