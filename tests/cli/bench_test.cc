// octile bench and demo on the fake driver, which accepts every call and computes nothing. All
// steps run, and the command must call the results wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class OnTheFakeDriver : public ::testing::Test {
 protected:
  OnTheFakeDriver() { shell.set("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH); }
  void SetUp() override {
    if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  }
  Shell shell;
};

TEST_F(OnTheFakeDriver, BenchOfAGemmTimesItAndCallsItWrong) {
  const Outcome outcome = shell.run({"bench", "--gemm", "64x512x1024", "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("at 64 tokens is wrong: "));
  const json bench = outcome.json();
  EXPECT_EQ(bench.at("device"), "cuda:0");
  EXPECT_GT(bench.at("empty_kernel").at("median_us"), 0);
  ASSERT_EQ(bench.at("results").size(), 1);
  const json& result = bench.at("results").at(0);
  EXPECT_FALSE(result.at("ok"));
  EXPECT_GT(result.at("tflops"), 0);
  const json& timing = result.at("octile");
  EXPECT_EQ(timing.at("rounds"), 3);
  EXPECT_LE(timing.at("p10_us"), timing.at("median_us"));
  EXPECT_LE(timing.at("median_us"), timing.at("p90_us"));
}

TEST_F(OnTheFakeDriver, BenchShowsWhatItTimedBeforeAnError) {
  const Outcome outcome =
      shell.run({"bench", "--problem", "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row",
                 "--tokens", "64,4294967296", "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("lo is 4294967296; allowed: 0 to 2147483647"));
  const json bench = outcome.json();
  ASSERT_EQ(bench.at("results").size(), 1);
  EXPECT_EQ(bench.at("results").at(0).at("tokens"), 64);
}

TEST_F(OnTheFakeDriver, BenchOfAQuantiserHasAStreamBesideIt) {
  for (const char* type : {"1x128", "128x128"}) {
    const Outcome outcome =
        shell.run({"bench", "--problem",
                   std::string("quantize rows=256 cols=1024 x=bf16 q=e4m3:") + type + " out=row",
                   "--rounds", "3", "--json"});
    EXPECT_EQ(outcome.exit_code, 1);
    const json result = outcome.json().at("results").at(0);
    EXPECT_FALSE(result.at("ok"));
    EXPECT_EQ(result.at("baseline").at("name"), "stream");
    EXPECT_GT(result.at("ratio"), 0);
  }
}

TEST_F(OnTheFakeDriver, BenchOfTheQuantisersIsATable) {
  const Outcome outcome =
      shell.run({"bench", "--suite", "quantize", "--select", "128 cols=7168 x=bf16 q=e4m3:tensor",
                 "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json results = outcome.json().at("results");
  ASSERT_EQ(results.size(), 4U);  // row-wise and both copies, each with current and delayed scaling
  for (const json& result : results) {
    EXPECT_EQ(result.at("tokens"), 128);
    EXPECT_FALSE(result.at("ok"));
    EXPECT_EQ(result.at("baseline").at("name"), "stream");
  }
  const Outcome none = shell.run({"bench", "--suite", "quantize", "--select", "x=int4"});
  EXPECT_EQ(none.exit_code, 2) << none.err;
  EXPECT_THAT(none.err,
              HasSubstr("--select is 'x=int4', which no problem of the suite quantize contains"));
}

TEST_F(OnTheFakeDriver, BenchTimesTheHostsPartOfALaunch) {
  const Outcome outcome = shell.run({"bench", "--gemm", "?x512x1024", "--passes", "fprop,wgrad",
                                     "--host-overhead", "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json launches = outcome.json().at("host_overhead");
  ASSERT_EQ(launches.size(), 2);
  for (const json& launch : launches) {
    EXPECT_GT(launch.at("host").at("median_us"), 0);
    EXPECT_GT(launch.at("bare_launch").at("median_us"), 0);
  }
}

TEST_F(OnTheFakeDriver, BenchOfThePassesNamesEachGemm) {
  const std::vector<std::string> command{
      "bench", "--gemm", "96x512x1024", "--passes", "fprop,dgrad,wgrad", "--rounds", "3"};
  const Outcome table = shell.run(command);
  EXPECT_EQ(table.exit_code, 1);
  EXPECT_THAT(table.err, HasSubstr("at 96 tokens is wrong: "));
  EXPECT_THAT(table.out, HasSubstr("96x512x1024 "));
  EXPECT_THAT(table.out, HasSubstr("96x1024x512 "));
  EXPECT_THAT(table.out, HasSubstr("512x1024x96 b=e4m3:1x128 d=fp32 acc=1 "));
  std::vector<std::string> as_json = command;
  as_json.push_back("--json");
  const json results = shell.run(as_json).json().at("results");
  ASSERT_EQ(results.size(), 3);
  EXPECT_THAT(results.at(2).at("problem"), HasSubstr("gemm m=512 n=1024 k=? "));
  for (const json& result : results) EXPECT_EQ(result.at("tokens"), 96);
}

TEST_F(OnTheFakeDriver, BenchSaysThatItsBaselineIsMissing) {
  shell.set("OCTILE_LIBCUBLASLT", "/nonexistent/libcublasLt.so");
  const Outcome outcome = shell.run({"bench", "--gemm", "64x512x1024", "--baseline", "cublaslt"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/libcublasLt.so"));
}

// Expects the report of a step that ran with rounds to spare and computed nothing.
void expect_wrong_step(const json& step, std::size_t parts, std::size_t bf16_parts) {
  EXPECT_FALSE(step.at("ok"));
  EXPECT_EQ(step.at("checks").size(), bf16_parts);
  EXPECT_EQ(step.at("parts").size(), parts);
  EXPECT_EQ(step.at("bf16_parts").size(), bf16_parts);
  for (const char* timing : {"step", "call_by_call", "bf16"}) {
    EXPECT_GT(step.at(timing).at("median_us"), 0) << timing;
  }
  EXPECT_GT(step.at("speedup"), 0);
  for (const char* name : {"parts", "bf16_parts"}) {
    double sum = 0;
    for (const json& part : step.at(name)) sum += part.at("share").get<double>();
    EXPECT_NEAR(sum, 1, 1e-9) << name;
  }
}

TEST_F(OnTheFakeDriver, BenchOfALinearLayerTimesItsParts) {
  shell.set("OCTILE_LIBCUBLASLT", OCTILE_FAKE_CUBLASLT_PATH);
  const Outcome outcome =
      shell.run({"bench", "linear", "--gemm", "256x1024x1024", "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("bench linear: a GEMM is wrong"));
  const json results = outcome.json().at("results");
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results.at(0).at("m"), 256);
  expect_wrong_step(results.at(0), 6, 3);
  EXPECT_EQ(results.at(0).at("parts").at(1).at("name"), "quantise W");
  EXPECT_EQ(results.at(0).at("bf16_parts").at(2).at("name"), "bf16 wgrad");
}

TEST_F(OnTheFakeDriver, BenchWithoutCublasltAsksForNoGpu) {
  shell.set("OCTILE_LIBCUBLASLT", "/nonexistent/libcublasLt.so.13");
  const Outcome outcome = shell.run({"bench", "linear", "--gemm", "256x1024x1024"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/libcublasLt.so.13"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("needs a GPU")));
}

// A model of 8 experts, 2 for each token, with square layers so that few kernels are compiled.
std::string small_experts(const Shell& shell) {
  const std::string path = shell.folder() / "small.json";
  std::ofstream(path) << R"({"model": "Small", "source": "a test",
    "gemms": [{"name": "o", "n": 256, "k": 256, "split": "k"}], "tokens": [64],
    "experts": {"count": 8, "per_token": 2, "gate_up": {"n": 256, "k": 256},
                "down": {"n": 256, "k": 256}}})";
  return path;
}

TEST_F(OnTheFakeDriver, BenchOfExpertsTimesBothRoutings) {
  shell.set("OCTILE_LIBCUBLASLT", OCTILE_FAKE_CUBLASLT_PATH);
  std::vector<std::string> command{"bench", "experts",  "--model", small_experts(shell), "--ep",
                                   "2",     "--tokens", "101",     "--rounds",           "3"};
  const Outcome table = shell.run(command);
  EXPECT_EQ(table.exit_code, 1);
  EXPECT_THAT(table.err, HasSubstr("bench experts: a GEMM is wrong"));
  EXPECT_THAT(table.out, HasSubstr("experts of Small: 4 of them on each of 2 ranks, 202 rows for "
                                   "101 tokens, recipe blockwise"));
  EXPECT_THAT(table.out, HasSubstr("skewed routing, 0 to 80 rows an expert: WRONG"));
  EXPECT_THAT(table.out, HasSubstr("skewed takes "));
  command.emplace_back("--json");
  const json experts = shell.run(command).json();
  EXPECT_EQ(experts.at("model"), "Small");
  EXPECT_EQ(experts.at("experts"), 4);
  EXPECT_GT(experts.at("skewed_over_uniform"), 0);
  ASSERT_EQ(experts.at("results").size(), 2U);
  for (const json& result : experts.at("results")) {
    expect_wrong_step(result, 12, 6);
    EXPECT_EQ(result.at("parts").at(11).at("name"), "down wgrad");
    const auto rows = result.at("rows_of_experts").get<std::vector<int>>();
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), 0), 202);
  }
  const json skewed = experts.at("results").at(1);
  EXPECT_EQ(skewed.at("routing"), "skewed");
  EXPECT_EQ(std::ranges::count(skewed.at("rows_of_experts"), json(0)), 1);
}

TEST_F(OnTheFakeDriver, DemoRunsOnTheGpuAndCallsTheResultWrong) {
  const Outcome outcome = shell.run({"demo", "--quick", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json demo = outcome.json();
  EXPECT_EQ(demo.at("executor"), "cuda:0");
  EXPECT_FALSE(demo.at("run").at("ok"));
  EXPECT_FALSE(demo.at("run").at("codes_equal_reference"));
}

TEST_F(OnTheFakeDriver, DoctorListsItsDevices) {
  const json doctor = shell.run({"doctor", "--json"}).json();
  EXPECT_TRUE(doctor.at("driver").at("found"));
  EXPECT_TRUE(doctor.at("devices").at(0).at("usable"));
  shell.set("FAKE_CUDA_DEVICES", "a100");
  const json old = shell.run({"doctor", "--json"}).json();
  EXPECT_FALSE(old.at("devices").at(0).at("usable"));
  EXPECT_EQ(old.at("missing").at(0).at("what"), "device");
  EXPECT_THAT(std::string(old.at("missing").at(0).at("why")),
              HasSubstr("(compute capability 8.0): the GPU has no FP8 tensor cores"));
}

}  // namespace
}  // namespace octile::tests
