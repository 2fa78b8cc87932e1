// The command says where tuning records are and which kernels they chose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cache/tuning_file.h"
#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// No model has this shape, so only this test's records are about it.
constexpr const char* kShape = "64x136x2944";
constexpr const char* kConfig =
    "tile=32x32x128 stages=12 wg=1 unroll=4 inflight=2 raster=3 store=direct pdl=early splits=3";

cache::TuningRecord record() {
  cache::TuningRecord r;
  r.problem = "gemm m=? n=136 k=2944 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
  r.bucket = 64;
  r.tokens = 64;
  r.device = "h200";
  r.sm_count = 132;
  r.winner.config = kConfig;
  r.date = "2026-01-31T12:00:00Z";
  return r;
}

class Tuning : public ::testing::Test {
 protected:
  void append(const cache::TuningRecord& r) const {
    const auto appended = file.append(r);
    ASSERT_TRUE(appended) << appended.error().sentence;
  }
  std::string chosen_by(const char* shape) const {
    const Outcome outcome = shell.run({"emit", "--gemm", shape, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.json().at("chosen_by");
  }

  Shell shell;
  const cache::TuningFile file{(shell.folder() / "cache").string(), true};
};

TEST_F(Tuning, EmitTakesARecordAndSaysSo) {
  EXPECT_EQ(chosen_by(kShape), "the cost model");
  append(record());
  EXPECT_EQ(chosen_by(kShape),
            "the exact record of '" + record().problem +
                "' at 64 tokens on h200 with 132 SMs (not timed, 2026-01-31T12:00:00Z, " +
                file.path() + ")");
  EXPECT_THAT(chosen_by("128x136x2944"), HasSubstr("the near bucket's record of"));
  const Outcome text = shell.run({"emit", "--gemm", kShape, "--explain"});
  EXPECT_THAT(text.out, HasSubstr("chosen by = the exact record of"));
  EXPECT_THAT(text.out, HasSubstr("configuration = tile=32x32x128 stages=12 wg=1 "));
  const json stated =
      shell.run({"emit", "--gemm", kShape, "--config", "tile=128x128x128", "--json"}).json();
  EXPECT_EQ(stated.at("chosen_by"), "the command line");
  shell.set("OCTILE_TUNING", "off");
  EXPECT_EQ(chosen_by(kShape), "the cost model");
}

TEST_F(Tuning, ExplainNamesTheSourceForEachBucket) {
  append(record());
  const Outcome stated = shell.run({"explain", kShape, "--device", "h200"});
  EXPECT_THAT(stated.out, HasSubstr("chosen by, on h200"));
  EXPECT_THAT(stated.out, HasSubstr("exact record: tile=32x32x128"));
  const json open = shell.run({"explain", "?x136x2944", "--device", "h200", "--json"}).json();
  EXPECT_EQ(open.at("device"), "h200");
  std::map<std::int64_t, std::string> by;
  for (const json& one : open.at("configurations")) by[one.at("tokens")] = one.at("chosen_by");
  EXPECT_EQ(by.size(), 30U);
  EXPECT_EQ(by.at(64), "exact record");
  EXPECT_EQ(by.at(128), "near bucket");
  EXPECT_EQ(by.at(4096), "cost model");
  const Outcome text = shell.run({"explain", "?x136x2944", "--device", "h200"});
  EXPECT_THAT(text.out, HasSubstr("exact record at 64 tokens; near bucket at"));
  EXPECT_THAT(shell.run({"explain", kShape, "--device", "h500"}).err, HasSubstr("h500"));
}

TEST_F(Tuning, EmitSaysWhereARecordTimedAnotherSource) {
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  cache::TuningRecord r = record();
  r.source_digest = "00112233445566778899aabbccddeeff";
  append(r);
  EXPECT_THAT(chosen_by(kShape), HasSubstr("`octile tune --refresh` times it again"));
  const Outcome compiled = shell.run({"compile", "--gemm", kShape, "--json"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  r.source_digest = compiled.json().at("kernels").at(0).at("source_digest");
  append(r);
  EXPECT_THAT(chosen_by(kShape), Not(HasSubstr("--refresh")));
}

TEST_F(Tuning, CompileCountsWhatChoseItsKernels) {
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  append(record());
  const std::vector<std::string> command{"compile", "--gemm", "?x136x2944", "--tokens",
                                         "64,128,1024"};
  const Outcome text = shell.run(command);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(
      text.out,
      HasSubstr(
          "  chosen by, in token-count buckets: exact record 1, near bucket 1, cost model 1\n"));
}

TEST_F(Tuning, DoctorCountsRecords) {
  append(record());
  const std::string line = "tuning     1 record in " + file.path() + "\n";
  EXPECT_THAT(shell.run({"doctor"}).out, HasSubstr(line));
  const json tuning = shell.run({"doctor", "--json"}).json().at("tuning");
  ASSERT_EQ(tuning.size(), 2U);
  EXPECT_EQ(tuning.at(0), (json{{"origin", file.path()}, {"records", 1}}));
  EXPECT_EQ(tuning.at(1).at("origin"), "the library's own set");
  shell.set("OCTILE_TUNING", "off");
  EXPECT_THAT(shell.run({"doctor"}).out, HasSubstr("tuning     off"));
}

}  // namespace
}  // namespace octile::tests
