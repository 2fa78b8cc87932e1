// octile demo without a GPU: what it prints, a second run, and machines that lack things.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> cache_states(const json& demo) {
  std::vector<std::string> states;
  for (const json& kernel : demo.at("kernels")) states.push_back(kernel.at("cache"));
  return states;
}

TEST(Demo, CompilesOnceAndFindsEverythingTheSecondTime) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const Outcome first = shell.run({"demo", "--quick", "--json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(cache_states(first.json()), (std::vector<std::string>{"miss", "miss", "miss"}));
  const Outcome second = shell.run({"demo", "--quick", "--json"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(cache_states(second.json()), (std::vector<std::string>{"hit", "hit", "hit"}));
}

TEST(Demo, JsonHasEveryStep) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const Outcome outcome = shell.run({"demo", "--quick", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json demo = outcome.json();
  EXPECT_EQ(demo.at("device"), "h200");
  EXPECT_EQ(demo.at("executor"), "host");
  EXPECT_EQ(demo.at("layer").at("k"), 7168);
  ASSERT_EQ(demo.at("quantisation").size(), 2);
  for (const json& study : demo.at("quantisation")) {
    ASSERT_EQ(study.at("granularities").size(), 3);
    for (const json& row : study.at("granularities")) {
      for (const char* key : {"scale_count", "scale_bytes", "data_bytes", "snr_db", "snr_bulk_db",
                              "flushed_share", "integer_snr_db", "integer_flushed_share"}) {
        EXPECT_TRUE(row.at(key).is_number()) << key;
      }
    }
  }
  ASSERT_EQ(demo.at("kernels").size(), 3);
  for (const json& kernel : demo.at("kernels")) {
    EXPECT_GT(kernel.at("registers"), 0);
    EXPECT_GT(kernel.at("compile_ms"), 0);
    EXPECT_GT(kernel.at("cubin_bytes"), 0);
    EXPECT_EQ(kernel.at("spill_store_bytes"), 0);
    EXPECT_EQ(kernel.at("spill_load_bytes"), 0);
  }
  EXPECT_TRUE(demo.at("run").at("ok"));
  // The error of a whole FP8 GEMM is about 3e-2 on this input.
  EXPECT_GT(demo.at("run").at("relative_error_of_fp8"), 1e-2);
  EXPECT_LT(demo.at("run").at("relative_error_of_fp8"), 6e-2);
}

// An outlier of 2e5 pushes the bulk into E4M3's subnormals if one scale serves the tensor. It does
// not if every 128 elements have their own scale.
TEST(Demo, OutliersHurtOnlyWhatSharesTheirScale) {
  const Shell shell;
  const Outcome outcome = shell.run({"demo", "--quick", "--json", "--device", "host"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json studies = outcome.json().at("quantisation");
  const auto bulk_db = [&](int study, int row) {
    return studies.at(static_cast<std::size_t>(study))
        .at("granularities")
        .at(static_cast<std::size_t>(row))
        .at("snr_bulk_db")
        .get<double>();
  };
  EXPECT_NEAR(bulk_db(0, 0), 31.5, 1.0);
  EXPECT_NEAR(bulk_db(0, 2), 31.8, 1.0);
  EXPECT_LT(bulk_db(1, 0), 16.0);
  EXPECT_NEAR(bulk_db(1, 2), 31.8, 1.0);
}

// Steps that can be done are done and shown, and the exit status says that it is not all.
TEST(Demo, WithoutDriverAndCompilerItSaysWhatThatCostsAndFails) {
  Shell shell;
  shell.set("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so");
  const Outcome text = shell.run({"demo", "--quick"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.err, HasSubstr("octile: demo: not all kernels could be had"));
  EXPECT_THAT(text.out, HasSubstr("no driver: "));
  EXPECT_THAT(text.out, HasSubstr("no compiler: "));
  EXPECT_THAT(text.out, HasSubstr("what that costs: "));
  EXPECT_THAT(text.out, HasSubstr("the reference executor stands in for a launch"));
  const Outcome data = shell.run({"demo", "--quick", "--json"});
  EXPECT_EQ(data.exit_code, 1);
  EXPECT_FALSE(data.json().at("kernels_complete"));
  EXPECT_TRUE(data.json().at("run").at("ok"));
}

TEST(Demo, KernelsFromACacheNeedNoCompiler) {
  Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  ASSERT_EQ(shell.run({"demo", "--quick", "--json"}).exit_code, 0);
  shell.set("OCTILE_LIBNVRTC", "/nonexistent/libnvrtc.so");
  const Outcome outcome = shell.run({"demo", "--quick", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.json().at("kernels_complete"));
  EXPECT_EQ(cache_states(outcome.json()), (std::vector<std::string>{"hit", "hit", "hit"}));
}

TEST(Demo, PrintsNothingButJsonToStdoutAndProgressToStderr) {
  const Shell shell;
  const Outcome quiet = shell.run({"demo", "--quick", "--json", "--device", "host"});
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_NO_THROW(quiet.json());
  EXPECT_EQ(quiet.err, "") << "progress is for terminals unless asked for";
}

}  // namespace
}  // namespace octile::tests
