// octile doctor on cards that are tested before they are trusted: the fake driver computes by the
// host executor there, and misbehaves if asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class DoctorOfCards : public ::testing::Test {
 protected:
  DoctorOfCards() {
    shell.set("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH);
    shell.set("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH);
    shell.set("FAKE_CUDA_EXECUTOR", OCTILE_FAKE_EXECUTOR_PATH);
    shell.set("FAKE_CUDA_EXECUTOR_ALSO_IN", fs::path(OCTILE_COMMAND).filename());
    shell.set("FAKE_CUDA_DEVICES", "rtx5090");
  }
  json tests(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"doctor", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = shell.run(words);
    exit_code = outcome.exit_code;
    error = outcome.err;
    return outcome.json().at("self_tests");
  }
  // Returns a text with its lines joined.
  static std::string joined(std::string text) {
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) {
      const std::size_t end = text.find_first_not_of(" \n", at);
      text.replace(at, end == std::string::npos ? end : end - at, " ");
    }
    return text;
  }

  Shell shell;
  int exit_code = -1;
  std::string error;
};

TEST_F(DoctorOfCards, TestsEveryCardOrTheOneThatIsAskedFor) {
  shell.set("FAKE_CUDA_DEVICES", "rtx5090,a100,l40s");
  const json all = tests();
  ASSERT_THAT(all, SizeIs(2)) << all;
  EXPECT_EQ(all.at(0).at("device"), "cuda:0");
  EXPECT_EQ(all.at(1).at("device"), "cuda:2");
  EXPECT_THAT(all.at(0).at("units"), SizeIs(2));
  EXPECT_THAT(all.at(1).at("units"), SizeIs(1));
  const json one = tests({"--device", "cuda:2"});
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_EQ(exit_code, 0) << one;
  EXPECT_EQ(one.at(0).at("device"), "cuda:2");
  EXPECT_EQ(shell.run({"doctor", "--device", "cuda:7"}).exit_code, 2);
  EXPECT_THAT(shell.run({"doctor", "--device", "l40s"}).err, HasSubstr("allowed: a live GPU"));
}

// A unit that is wrong, or does not end, is the command's failure, also if the layer, which the
// other unit then computes, is right.
TEST_F(DoctorOfCards, AWrongUnitIsAFailure) {
  for (const char* fault : {"wrong", "hang"}) {
    shell.set("FAKE_CUDA_FAULT", std::string(fault) + ":_mma_scaled");
    const json test = tests().at(0);
    EXPECT_EQ(exit_code, 1);
    EXPECT_FALSE(test.at("ok"));
    EXPECT_THAT(test.at("verdict").get<std::string>(), testing::StartsWith("right: "));
    EXPECT_TRUE(test.at("quantisers").at("ok"));
    const json& unit = test.at("units").at(0);
    EXPECT_EQ(unit.at("unit"), "mma_scaled");
    EXPECT_FALSE(unit.at("ok"));
    EXPECT_TRUE(unit.at("tested"));
    EXPECT_TRUE(unit.at("remembered").is_null());
    EXPECT_THAT(error, HasSubstr("is not passed: matrix unit mma_scaled: wrong: "));
  }
}

// Outcomes of an earlier process serve one that can test nothing, and doctor says so.
TEST_F(DoctorOfCards, ShowsWhatIsRememberedWhereNothingCanBeTested) {
  shell.set("FAKE_CUDA_FAULT", "wrong:_mma_scaled");
  tests();
  shell.set("FAKE_CUDA_FAULT", "");
  shell.set("OCTILE_PROVER", "none");
  const json test = tests().at(0);
  EXPECT_EQ(exit_code, 1);
  const json& unit = test.at("units").at(0);
  EXPECT_FALSE(unit.at("tested"));
  EXPECT_THAT(unit.at("verdict").get<std::string>(),
              HasSubstr("not tested: OCTILE_PROVER is none"));
  EXPECT_THAT(unit.at("remembered").at("verdict").get<std::string>(),
              HasSubstr("wrong: D[5][7] is"));
  EXPECT_THAT(unit.at("remembered").at("date").get<std::string>(),
              testing::MatchesRegex("20[0-9-]+T[0-9:]+Z"));
  EXPECT_EQ(test.at("quantisers").at("remembered").at("verdict"), "right");
  EXPECT_EQ(test.at("units").at(1).at("remembered").at("verdict"), "right");
  EXPECT_THAT(
      joined(shell.run({"doctor"}).out),
      HasSubstr("OCTILE_PROVER is none; unset it, and `octile doctor` tests; what was found "
                "on 20"));
}

// Why nothing can be tested, and what to do.
struct Refusal {
  const char* name;
  const char* variable;
  const char* value;
  const char* sentence;
};
class DoctorRefusals : public DoctorOfCards, public ::testing::WithParamInterface<Refusal> {};

TEST_P(DoctorRefusals, HaveARemedy) {
  shell.set(GetParam().variable, GetParam().value);
  const json test = tests().at(0);
  for (const json& unit : test.at("units"))
    EXPECT_THAT(unit.at("verdict").get<std::string>(),
                AllOf(HasSubstr("not tested: "), HasSubstr(GetParam().sentence)));
  EXPECT_THAT(test.at("quantisers").at("verdict").get<std::string>(),
              HasSubstr(GetParam().sentence));
  const std::string text = shell.run({"doctor"}).out;
  EXPECT_THAT(joined(text), HasSubstr(GetParam().sentence));
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.starts_with("  quantisers: ")) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, DoctorRefusals,
    ::testing::Values(
        Refusal{"Memory", "FAKE_CUDA_FAULT", "memory",
                "; run `octile doctor` again while no other program has memory of the device"},
        Refusal{"Offline", "OCTILE_OFFLINE", "on",
                "; run `octile doctor` once where kernels are compiled, or `octile compile` with "
                "--device ahead, and keep the cache folder"},
        Refusal{"NoProgram", "OCTILE_PROVER", "/nowhere/octile-prover",
                "; unset OCTILE_PROVER, so that octile-prover beside the library tests"},
        Refusal{"OtherProgram", "OCTILE_PROVER", "/bin/true",
                "; unset OCTILE_PROVER, so that octile-prover beside the library tests"},
        Refusal{"ComputeMode", "FAKE_CUDA_COMPUTE_MODE", "3",
                "`nvidia-smi --compute-mode=DEFAULT` allows one"}),
    [](const auto& refusal) { return std::string(refusal.param.name); });

TEST_F(DoctorOfCards, SaysThatTheProgramOfTestsIsNone) {
  shell.set("OCTILE_PROVER", "/nowhere/octile-prover");
  const Outcome outcome = shell.run({"doctor"});
  EXPECT_THAT(joined(outcome.out),
              HasSubstr("no kernels before their first use: \"/nowhere/octile-prover\" cannot be "
                        "started: No such file or directory; unset OCTILE_PROVER"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("kernels of untested GPUs in /nowhere")));
  EXPECT_TRUE(shell.run({"doctor", "--json"}).json().at("prover_program").is_null());
}

// A report that a person sends names no folder of the machine.
TEST_F(DoctorOfCards, ReportsNoPath) {
  const std::string home = shell.folder().string() + "/home of alice";
  fs::create_directories(home);
  shell.set("HOME", home);
  shell.set("FAKE_CUDA_EXECUTOR_ALSO_IN", "");  // the GEMMs that are timed are large
  shell.set("FAKE_CUDA_FAULT", "wrong:_mma_scaled");
  shell.set("OCTILE_COMMIT", "0123abc");
  tests();
  const auto report = [&] {
    const Outcome outcome = shell.run({"doctor", "--report"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(Not(HasSubstr(shell.folder().string())), Not(HasSubstr("alice")),
                                   Not(HasSubstr("secret"))));
    return outcome.json();
  };
  const json right = report();
  EXPECT_EQ(right.at("commit"), "0123abc");
  EXPECT_THAT(right.at("driver_build").get<std::string>(), HasSubstr("libcuda.so"));
  ASSERT_THAT(right.at("kept"), Not(IsEmpty()));
  bool has_wrong = false;
  for (const json& kept : right.at("kept")) {
    EXPECT_NE(kept.at("date"), "");
    has_wrong = has_wrong || kept.at("verdict").get<std::string>().starts_with("wrong: D[5][7]");
  }
  EXPECT_TRUE(has_wrong);
  shell.set("OCTILE_PROVER", home + "/secret/octile-prover");
  EXPECT_THAT(report().at("quantisers").at("verdict").get<std::string>(),
              HasSubstr("\"~/octile-prover\" cannot be started"));
  shell.set("OCTILE_PROVER", "/secret/tools/octile-prover");
  EXPECT_THAT(report().at("quantisers").at("verdict").get<std::string>(),
              HasSubstr("\"octile-prover\" cannot be started"));
  shell.set("OCTILE_OFFLINE", "on");
  shell.set("OCTILE_CACHE_DIR", shell.folder().string() + "/secret cache");
  EXPECT_THAT(report().at("quantisers").at("verdict").get<std::string>(),
              HasSubstr("is not in the cache (<cache>)"));
}

}  // namespace
}  // namespace octile::tests
