// octile bench and demo on the fake driver, which accepts every call and computes nothing. All
// steps run, and the command must call the results wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::AllOf;
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
  EXPECT_THAT(outcome.err, HasSubstr("bench: gemm m=64 n=512 k=1024 "));
  EXPECT_THAT(outcome.err, HasSubstr(" is wrong: "));
  const json bench = outcome.json();
  EXPECT_EQ(bench.at("device"), "cuda:0");
  ASSERT_EQ(bench.at("records").size(), 2);
  EXPECT_EQ(bench.at("records").at(0).at("what"), "empty kernel");
  const json& record = bench.at("records").at(1);
  EXPECT_FALSE(record.at("ok"));
  EXPECT_GT(record.at("details").at("flop"), 0);
  EXPECT_EQ(record.at("protocol").at("rounds"), 3);
  EXPECT_EQ(record.at("samples").size(), 3);
  EXPECT_EQ(record.at("card").at("capability"), "9.0");
}

// A search compiles dozens of kernels, so NVRTC is a fake here.
TEST_F(OnTheFakeDriver, RegretOfWrongResultsIsAnError) {
  shell.set("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH);
  const Outcome outcome = shell.run({"bench", "regret", "--gemm", "?x512x1024", "--tokens", "7",
                                     "--problems", "1", "--most", "2", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no candidate for gemm m=? n=512 k=1024 "));
  EXPECT_THAT(outcome.err, HasSubstr(" at 7 tokens gives correct results"));
}

TEST(BenchRegret, SaysWhatItsOptionsAllow) {
  Shell shell;
  const struct {
    std::vector<std::string> words;
    const char* sentence;
  } kCases[] = {{{"--within", "0.9"}, "--within is 0.9; allowed: a factor, 1 or more"},
                {{"--within", "nan"}, "--within is nan; allowed: a factor, 1 or more"},
                {{"--most", "1"}, "--most is 1; allowed: 2 candidates or more"},
                {{"--problems", "0"}, "--problems is 0; allowed: 1 or more"},
                {{"--budget", "0"}, "--budget is 0; allowed: seconds, more than 0"}};
  for (const auto& [words, sentence] : kCases) {
    std::vector<std::string> all{"bench", "regret", "--gemm", "?x512x1024"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = shell.run(all);
    EXPECT_EQ(outcome.exit_code, 2) << sentence;
    EXPECT_THAT(outcome.err, HasSubstr(sentence));
  }
}

TEST_F(OnTheFakeDriver, BenchShowsWhatItTimedBeforeAnError) {
  const Outcome outcome =
      shell.run({"bench", "--problem", "quantize rows=? cols=512 x=bf16 q=e4m3:1x128 out=row",
                 "--tokens", "64,4294967296", "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("lo is 4294967296; allowed: 0 to 2147483647"));
  const json bench = outcome.json();
  ASSERT_EQ(bench.at("records").size(), 2);
  EXPECT_THAT(bench.at("records").at(1).at("what"), HasSubstr("quantize rows=64 cols=512 "));
}

TEST_F(OnTheFakeDriver, BenchOfAQuantiserHasAStreamBesideIt) {
  for (const char* type : {"1x128", "128x128"}) {
    const Outcome outcome =
        shell.run({"bench", "--problem",
                   std::string("quantize rows=256 cols=1024 x=bf16 q=e4m3:") + type + " out=row",
                   "--rounds", "3", "--json"});
    EXPECT_EQ(outcome.exit_code, 1);
    const json record = outcome.json().at("records").at(1);
    EXPECT_FALSE(record.at("ok"));
    EXPECT_EQ(record.at("peers").at(0).at("name"), "stream");
    EXPECT_EQ(record.at("peers").at(0).at("samples").size(), 3);
  }
}

TEST_F(OnTheFakeDriver, BenchOfTheQuantisersIsATable) {
  const Outcome outcome =
      shell.run({"bench", "--suite", "quantize", "--select", "128 cols=7168 x=bf16 q=e4m3:tensor",
                 "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json records = outcome.json().at("records");
  // An empty kernel; row-wise and both copies, each with current and delayed scaling.
  ASSERT_EQ(records.size(), 5U);
  for (std::size_t i = 1; i < records.size(); ++i) {
    EXPECT_EQ(records[i].at("details").at("tokens"), 128);
    EXPECT_FALSE(records[i].at("ok"));
    EXPECT_EQ(records[i].at("peers").at(0).at("name"), "stream");
  }
  const Outcome none = shell.run({"bench", "--suite", "quantize", "--select", "x=int4"});
  EXPECT_EQ(none.exit_code, 2) << none.err;
  EXPECT_THAT(none.err,
              HasSubstr("--select is 'x=int4', which no problem of the suite quantize contains"));
}

// The fake driver takes the launches of every step; no kernel has written a code.
TEST_F(OnTheFakeDriver, BenchOfPiecesTimesEveryStep) {
  const std::string path = (shell.folder() / "tiny.json").string();
  std::ofstream(path) << R"({"model": "tiny", "source": "this test", "tokens": [64],
      "gemms": [{"name": "up", "n": 256, "k": 512, "split": "n"},
                {"name": "down", "n": 512, "k": 250, "split": "k"}]})";
  for (const std::string cut : {"rows", "flat"}) {
    const Outcome outcome = shell.run({"bench", "pieces", "--model", path, "--layers", "3",
                                       "--ranks", "4", "--cut", cut, "--rounds", "3", "--json"});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("bench pieces: codes are wrong"));
    const json records = outcome.json().at("records");
    ASSERT_EQ(records.size(), 4U);
    const char* const steps[] = {"amax", "scales", "cast", "transpose"};
    for (std::size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].at("part"), steps[i]);
      EXPECT_EQ(records[i].at("details").at("pieces"), 6);
      EXPECT_EQ(records[i].at("samples").size(), 3);
    }
    // A quarter of 3 * (256 * 512 + 512 * 250) elements: 4 bytes read, 1 written.
    EXPECT_EQ(records[2].at("details").at("bytes"), 971520);
    EXPECT_THAT(records[2].at("what").get<std::string>(), HasSubstr("cut=" + cut));
  }
  const Outcome refused = shell.run({"bench", "pieces", "--cut", "columns"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--cut is 'columns'; allowed: rows, flat"));
  const Outcome many = shell.run({"bench", "pieces", "--ranks", "0"});
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_THAT(many.err, HasSubstr("--ranks is 0; allowed: 1 to 4096"));
}

TEST_F(OnTheFakeDriver, BenchTimesTheHostsPartOfALaunch) {
  const Outcome outcome = shell.run({"bench", "--gemm", "?x512x1024", "--passes", "fprop,wgrad",
                                     "--host-overhead", "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json records = outcome.json().at("records");
  ASSERT_EQ(records.size(), 3);
  for (std::size_t i = 1; i < records.size(); ++i) {
    EXPECT_EQ(records[i].at("part"), "host's part of octile_gemm_run");
    EXPECT_EQ(records[i].at("samples").size(), 360);
    EXPECT_EQ(records[i].at("peers").at(0).at("samples").size(), 360);
  }
}

TEST_F(OnTheFakeDriver, BenchOfThePassesNamesEachGemm) {
  const std::vector<std::string> command{
      "bench", "--gemm", "96x512x1024", "--passes", "fprop,dgrad,wgrad", "--rounds", "3", "--wide"};
  const Outcome table = shell.run(command);
  EXPECT_EQ(table.exit_code, 1);
  EXPECT_THAT(table.err, HasSubstr("bench: gemm m=96 n=512 k=1024 "));
  EXPECT_THAT(table.out, HasSubstr("96x512x1024 "));
  EXPECT_THAT(table.out, HasSubstr("96x1024x512 "));
  EXPECT_THAT(table.out,
              HasSubstr("512x1024x96 a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 "));
  std::vector<std::string> as_json = command;
  as_json.back() = "--json";
  const json records = shell.run(as_json).json().at("records");
  ASSERT_EQ(records.size(), 4);
  EXPECT_THAT(records.at(3).at("what"), HasSubstr("gemm m=512 n=1024 k=96 "));
}

// The file has the text that --json prints; a file of something else is refused before a GPU is
// asked for.
TEST_F(OnTheFakeDriver, BenchKeepsRecords) {
  const std::string path = shell.folder() / "records.jsonl";
  shell.set("OCTILE_COMMIT", "0123abc");
  const Outcome outcome =
      shell.run({"bench", "--gemm", "64x512x1024", "--rounds", "3", "--records", path, "--json"});
  const json printed = outcome.json().at("records");
  std::ifstream file(path);
  std::vector<json> kept;
  for (std::string line; std::getline(file, line);) kept.push_back(json::parse(line));
  EXPECT_EQ(json(kept), printed);
  EXPECT_EQ(kept.at(1).at("commit"), "0123abc");
  EXPECT_EQ(kept.at(1).at("tool"), "octile bench");
  std::ofstream(path, std::ios::app) << "{}\n";
  shell.set("OCTILE_LIBCUDA", "/nonexistent/libcuda.so");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"bench", "--gemm", "64x512x1024"},
                                             {"bench", "quantize"},
                                             {"bench", "linear", "--gemm", "64x512x1024"},
                                             {"bench", "experts", "--model", "deepseek-v3"},
                                             {"tune", "--gemm", "64x512x1024"},
                                             {"doctor", "--measure"}}) {
    std::vector<std::string> command = words;
    command.insert(command.end(), {"--records", path});
    const Outcome refused = shell.run(command);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("--records is '" + path +
                                       "'; allowed: a file of records, or one that does not "
                                       "exist: " +
                                       path + " line 3: record is null; allowed: 1"));
  }
  EXPECT_THAT(shell.run({"doctor", "--records", path}).err, HasSubstr("only with --measure"));
}

TEST_F(OnTheFakeDriver, BenchSaysThatItsBaselineIsMissing) {
  shell.set("OCTILE_LIBCUBLASLT", "/nonexistent/libcublasLt.so");
  const Outcome outcome = shell.run({"bench", "--gemm", "64x512x1024", "--baseline", "cublaslt"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/libcublasLt.so"));
}

// Expects the records of steps that ran and computed nothing: `parts` of each, three or six of
// which have a peer, the step, and the step call by call.
void expect_wrong_steps(const json& records, std::size_t steps, std::size_t parts) {
  ASSERT_EQ(records.size(), steps * (parts + 2));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const json& record = records[i];
    const std::size_t part = i % (parts + 2);
    EXPECT_FALSE(record.at("ok"));
    EXPECT_EQ(record.at("samples").size(), 3);
    const std::string name = record.at("part");
    const bool has_peer = name == "step" || name.ends_with("prop") || name.ends_with("grad");
    EXPECT_EQ(record.contains("peers"), has_peer) << name;
    if (has_peer) {
      EXPECT_EQ(record.at("peers").at(0).at("name"), "bf16");
    }
    if (part == parts) {
      EXPECT_EQ(name, "step");
    }
    if (part == parts + 1) {
      EXPECT_EQ(name, "step, call by call");
    }
  }
}

TEST_F(OnTheFakeDriver, BenchOfALinearLayerTimesItsParts) {
  shell.set("OCTILE_LIBCUBLASLT", OCTILE_FAKE_CUBLASLT_PATH);
  const Outcome outcome =
      shell.run({"bench", "linear", "--gemm", "256x1024x1024", "--rounds", "3", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("bench linear: a GEMM is wrong"));
  const json records = outcome.json().at("records");
  expect_wrong_steps(records, 1, 6);
  EXPECT_EQ(records.at(0).at("what"), "linear m=256 n=1024 k=1024 recipe=blockwise");
  EXPECT_EQ(records.at(1).at("part"), "quantise W");
  EXPECT_EQ(records.at(5).at("part"), "wgrad");
  const Outcome table = shell.run({"bench", "linear", "--gemm", "256x1024x1024", "--rounds", "3"});
  EXPECT_THAT(table.out, HasSubstr("linear m=256 n=1024 k=1024 recipe=blockwise: WRONG"));
  for (const char* part : {"  quantise dY ", "  wgrad ", "  step ", "  step, call by call ",
                           "  bf16 wgrad ", "  bf16 step ", "x of the graph's time call by call"})
    EXPECT_THAT(table.out, HasSubstr(part));
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
  EXPECT_THAT(table.out, HasSubstr("routing=skewed, 0 to 80 rows an expert: WRONG"));
  EXPECT_THAT(table.out, HasSubstr("skewed takes "));
  EXPECT_THAT(table.out,
              HasSubstr("bf16 is a GEMM for each expert, because cuBLASLt has no grouped"));
  command.emplace_back("--json");
  const json records = shell.run(command).json().at("records");
  expect_wrong_steps(records, 2, 12);
  EXPECT_EQ(records.at(11).at("part"), "down wgrad");
  EXPECT_EQ(records.at(14).at("what"),
            "experts model=Small ep=2 tokens=101 recipe=blockwise routing=skewed");
  EXPECT_EQ(records.at(14).at("details").at("experts"), 4);
  EXPECT_EQ(records.at(14).at("details").at("least_rows"), 0);
  EXPECT_EQ(records.at(14).at("details").at("most_rows"), 80);
  EXPECT_GT(records.at(14).at("details").at("grouped_bf16_us"), 0);
}

// All kernels of a layer are timed in one run: its GEMM in both types and its quantiser.
TEST_F(OnTheFakeDriver, BenchOfAVerdictTimesTheKernelsOfEachLayer) {
  shell.set("OCTILE_LIBCUBLASLT", OCTILE_FAKE_CUBLASLT_PATH);
  const std::string path = shell.folder() / "one.json", kept = shell.folder() / "records.jsonl";
  std::ofstream(path) << R"({"model": "One", "source": "a test", "tokens": [64],
    "gemms": [{"name": "o", "n": 256, "k": 256, "split": "k"}]})";
  const std::vector<std::string> words{"bench",  "verdict", "--model",  path,
                                       "--mode", "decode",  "--rounds", "3"};
  std::vector<std::string> as_json = words;
  as_json.insert(as_json.end(), {"--json", "--records", kept});
  const Outcome outcome = shell.run(as_json);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("bench verdict: a GEMM is wrong"));
  const json model = outcome.json().at("models").at(0);
  EXPECT_FALSE(model.at("ok"));
  ASSERT_EQ(model.at("layers").size(), 1);
  const json& layer = model.at("layers").at(0);
  for (const char* of : {"bf16_us", "fp8_gemms_us", "quantize_us"}) {
    EXPECT_EQ(layer.at(of).at("source"), "measured");
    EXPECT_GT(layer.at(of).at("median"), 0);
  }
  EXPECT_NE(layer.at("verdict"), "measure");
  EXPECT_EQ(model.at("sums").at(0).at("tokens"), 64);
  std::ifstream file(kept);
  std::string line;
  std::getline(file, line);
  EXPECT_THAT(
      line,
      HasSubstr("layer model=One layer=o mode=decode tokens=64 n=256 k=256 recipe=blockwise"));
  const json details = json::parse(line).at("details");
  for (const char* name : {"gain", "gain_eager"}) EXPECT_GT(details.at(name), 0) << name;
  EXPECT_EQ(details.at("verdict"), layer.at("verdict"));
  EXPECT_EQ(details.at("verdict_eager"), layer.at("verdict_eager"));
  EXPECT_THAT(shell.run(words).out, HasSubstr("does FP8 pay in One, measured on cuda:0 (NVIDIA "));
  EXPECT_THAT(shell.run({"bench", "verdict"}).err, HasSubstr("without --model"));
}

// Records of layers are judged without a GPU.
TEST(Bench, JudgesRecordsOfLayers) {
  Shell shell;
  const fs::path path = shell.folder() / "layers.jsonl";
  std::ofstream(path) << layer_record();
  const Outcome outcome = shell.run({"bench", "verdict", "--judge", path});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json details = json::parse(outcome.out).at("details");
  EXPECT_EQ(details.at("verdict"), "even");
  EXPECT_EQ(details.at("verdict_eager"), "loses");
  // A terminal is written no character that turns its direction, and what is written stays JSON.
  json turned = json::parse(layer_record());
  turned["card"]["name"] = "H\u202e200";
  std::ofstream(path) << turned.dump();
  const std::string text = shell.run({"bench", "verdict", "--judge", path}).out;
  EXPECT_EQ(json::parse(text).at("card").at("name"), "H\u202e200");
  EXPECT_EQ(text.find("\u202e"), std::string::npos);
  std::ofstream(path) << R"({"record": 1})";
  EXPECT_EQ(shell.run({"bench", "verdict", "--judge", path}).exit_code, 2);
  EXPECT_THAT(shell.run({"bench", "verdict", "--judge", shell.folder() / "none"}).err,
              HasSubstr("cannot be read"));
}

// cuBLASLt has no grouped GEMM here: its loop over the experts is named; sums leave it out.
TEST_F(OnTheFakeDriver, BenchOfAVerdictKeepsALoopOverExpertsOutOfItsSums) {
  shell.set("OCTILE_LIBCUBLASLT", OCTILE_FAKE_CUBLASLT_PATH);
  const std::string path = shell.folder() / "config.json", kept = shell.folder() / "records.jsonl";
  std::ofstream(path) << R"({"model_type": "mixtral", "hidden_size": 256, "vocab_size": 512,
    "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2})";
  const json model = shell
                         .run({"bench", "verdict", "--model", path, "--mode", "prefill", "--tokens",
                               "64", "--rounds", "3", "--json", "--records", kept})
                         .json()
                         .at("models")
                         .at(0);
  double sum = 0;
  int grouped = 0;
  for (const json& layer : model.at("layers")) {
    const bool is_grouped = layer.contains("groups");
    grouped += is_grouped ? 1 : 0;
    EXPECT_EQ(layer.at("bf16_us").at("source"), is_grouped ? "estimated" : "measured");
    sum += layer.at("bf16_us").at("median").get<double>();
  }
  EXPECT_EQ(grouped, 2);
  EXPECT_NEAR(model.at("sums").at(0).at("bf16_us").get<double>(), sum, 1e-6);
  EXPECT_THAT(model.at("remarks").dump(), HasSubstr("grouped GEMMs; cublaslt x 8, a call a group"));
  std::ifstream file(kept);
  int loops = 0;
  for (std::string line; std::getline(file, line);) {
    const json peers = json::parse(line).at("peers");
    EXPECT_EQ(peers.at(0).at("name"), "bf16");
    if (peers.size() == 1) continue;
    EXPECT_EQ(peers.at(1).at("name"), "cublaslt x 8");
    EXPECT_GT(peers.at(1).at("median"), 0);
    ++loops;
  }
  EXPECT_EQ(loops, 2);
}

TEST_F(OnTheFakeDriver, DemoRunsOnTheGpuAndCallsTheResultWrong) {
  const Outcome outcome = shell.run({"demo", "--quick", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json demo = outcome.json();
  EXPECT_EQ(demo.at("executor"), "cuda:0");
  EXPECT_FALSE(demo.at("run").at("ok"));
  EXPECT_FALSE(demo.at("run").at("codes_equal_reference"));
}

// It names the parts that it cannot test or measure here, without a compiler.
TEST_F(OnTheFakeDriver, DoctorReportsACardToSend) {
  shell.set("FAKE_CUDA_DEVICES", "rtx5090");
  shell.set("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so");
  const Outcome outcome = shell.run({"doctor", "--report"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = outcome.json();
  EXPECT_EQ(report.at("device").at("name"), "NVIDIA GeForce RTX 5090");
  EXPECT_EQ(report.at("device").at("compute_capability"), "12.0");
  EXPECT_NE(report.at("driver"), "");
  std::vector<std::string> units;
  for (const json& unit : report.at("units")) {
    units.push_back(unit.at("unit"));
    EXPECT_FALSE(unit.at("ok"));
    EXPECT_THAT(std::string(unit.at("verdict")),
                AllOf(HasSubstr("libnvrtc.so"), Not(HasSubstr("/nonexistent"))));
    EXPECT_TRUE(unit.at("sum_bits").is_null());
  }
  EXPECT_THAT(units, testing::ElementsAre("mma_scaled", "mma"));
  EXPECT_FALSE(report.at("quantisers").at("ok"));
  EXPECT_TRUE(report.at("rates").is_null());
  EXPECT_NE(report.at("why_no_rates"), "");
  EXPECT_EQ(report.at("times").size(), 10U);
  for (const json& time : report.at("times")) {
    EXPECT_GE(time.at("tokens"), 1);
    EXPECT_THAT(std::string(time.at("why_not")),
                AllOf(HasSubstr("libnvrtc.so"), Not(HasSubstr("/nonexistent"))));
  }
}

TEST_F(OnTheFakeDriver, DoctorListsItsDevices) {
  const json doctor = shell.run({"doctor", "--json"}).json();
  EXPECT_TRUE(doctor.at("driver").at("found"));
  EXPECT_TRUE(doctor.at("devices").at(0).at("usable"));
  shell.set("FAKE_CUDA_DEVICES", "l40s");
  const json ada = shell.run({"doctor", "--json"}).json();
  EXPECT_TRUE(ada.at("devices").at(0).at("usable"));
  EXPECT_TRUE(ada.at("devices").at(0).at("without_kernels").empty());
  EXPECT_FALSE(ada.at("self_tests").at(0).at("ok"));
  EXPECT_THAT(
      std::string(ada.at("self_tests").at(0).at("verdict")),
      HasSubstr("NVIDIA L40S (compute capability 8.9) does not pass the known-answer test"));
  shell.set("FAKE_CUDA_DEVICES", "a100");
  const json old = shell.run({"doctor", "--json"}).json();
  EXPECT_FALSE(old.at("devices").at(0).at("usable"));
  EXPECT_EQ(old.at("missing").at(0).at("what"), "device");
  EXPECT_THAT(std::string(old.at("missing").at(0).at("why")),
              HasSubstr("(compute capability 8.0): the GPU has no FP8 tensor cores"));
}

}  // namespace
}  // namespace octile::tests
