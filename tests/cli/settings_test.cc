// The environment, the folder of the cache, and what doctor says of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

json setting(const Shell& shell, const std::string& name) {
  const json all = shell.run({"cache", "config", "--json"}).json();
  for (const json& one : all) {
    if (one.at("setting") == name) return one;
  }
  return {};
}

TEST(Settings, SwitchesTakeTheUsualWords) {
  for (const auto& [word, state] :
       {std::pair{"no", "off"}, {"0", "off"}, {"False", "off"}, {"yes", "on"}, {"ON", "on"}}) {
    Shell shell;
    shell.set("OCTILE_OFFLINE", word);
    shell.set("OCTILE_TUNING", word);
    EXPECT_EQ(setting(shell, "offline").at("value"), state) << word;
    EXPECT_EQ(setting(shell, "tuning").at("value"), state) << word;
  }
}

TEST(Settings, TuningSaysWhetherPreparesSearch) {
  Shell shell;
  shell.set("OCTILE_TUNING", "prepare:30");
  EXPECT_EQ(setting(shell, "tuning").at("value"), "prepare:30");
  EXPECT_EQ(setting(shell, "tuning").at("source"), "OCTILE_TUNING");
}

TEST(Settings, SizesTakeUnits) {
  Shell shell;
  shell.set("OCTILE_CACHE_MAX_BYTES", "5G");
  EXPECT_EQ(setting(shell, "max_bytes").at("value"), "5368709120");
  EXPECT_EQ(setting(shell, "max_bytes").at("source"), "OCTILE_CACHE_MAX_BYTES");
}

TEST(Settings, WhatIsNotTakenIsNamedInAWarning) {
  Shell shell;
  shell.set("OCTILE_OFFLINE", "maybe");
  shell.set("OCTILE_CACHE_MAX_BYTES", "five");
  shell.set("OCTILE_CACHEDIR", "/tmp");
  const Outcome outcome = shell.run({"cache", "config", "--json"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("warning: OCTILE_OFFLINE is 'maybe'"));
  EXPECT_THAT(outcome.err, HasSubstr("warning: OCTILE_CACHE_MAX_BYTES is 'five'"));
  EXPECT_THAT(outcome.err, HasSubstr("OCTILE_CACHEDIR is set, and there is no such variable; did "
                                     "you mean OCTILE_CACHE_DIR?"));
  EXPECT_EQ(setting(shell, "offline").at("value"), "off");
  EXPECT_EQ(setting(shell, "max_bytes").at("source"), "default");
  const Outcome doctor = shell.run({"doctor", "--json"});
  EXPECT_EQ(doctor.exit_code, 0);
  EXPECT_EQ(doctor.json().at("bad_settings").size(), 3);
  EXPECT_THAT(shell.run({"doctor"}).out, HasSubstr("settings that are not taken"));
}

std::string why_no_cache(const Shell& shell) {
  const Outcome outcome = shell.run({"doctor", "--json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json doctor = outcome.json();
  EXPECT_FALSE(doctor.at("cache").at("writable"));
  for (const json& missing : doctor.at("missing")) {
    if (missing.at("what") == "cache") return missing.at("why");
  }
  return {};
}

TEST(DoctorsCache, AFolderThatOthersMayWriteIsNamedWithItsMode) {
  Shell shell;
  const fs::path folder = shell.folder() / "open";
  fs::create_directory(folder);
  fs::permissions(folder, fs::perms::all);
  shell.set("OCTILE_CACHE_DIR", folder.string());
  EXPECT_THAT(why_no_cache(shell), HasSubstr("its mode is 0777"));
  shell.set("OCTILE_CACHE_DIR", (shell.folder() / "cache").string());
  shell.set("OCTILE_CACHE_ROOTS", folder.string());
  const json doctor = shell.run({"doctor", "--json"}).json();
  EXPECT_TRUE(doctor.at("cache").at("writable"));
  ASSERT_EQ(doctor.at("advice").size(), 1);
  EXPECT_THAT(doctor.at("advice")[0].get<std::string>(), HasSubstr("its mode is 0777"));
}

TEST(DoctorsCache, WhatTakesNoFilesIsNotWritable) {
  Shell shell;
  shell.set("OCTILE_CACHE_DIR", "/proc/nope");
  EXPECT_THAT(why_no_cache(shell), HasSubstr("nothing can be created in /proc"));
  shell.set("OCTILE_CACHE_DIR", "/dev/null/cache");
  EXPECT_THAT(why_no_cache(shell), Not(IsEmpty()));
}

TEST(DoctorsCache, LeavesNothingInTheFolder) {
  const Shell shell;
  fs::create_directory(shell.folder() / "cache");
  fs::permissions(shell.folder() / "cache", fs::perms::owner_all);
  ASSERT_TRUE(shell.run({"doctor", "--json"}).json().at("cache").at("writable"));
  for (const auto& entry : fs::directory_iterator(shell.folder() / "cache"))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("doctor")));
}

TEST(DoctorsCache, NoFolderAtAllIsSaid) {
  Shell shell;
  for (const char* variable : {"OCTILE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"})
    shell.set(variable, "");
  EXPECT_THAT(why_no_cache(shell), HasSubstr("neither OCTILE_CACHE_DIR"));
  const Outcome outcome = shell.run({"compile", "--gemm", "64x7168x2048"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there is no cache folder to compile into"));
}

// The fake driver computes nothing, so a test that compares must say so.
TEST(DoctorsSelfTest, NoticesADeviceThatComputesNothing) {
  Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  shell.set("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH);
  shell.set("FAKE_CUDA_DEVICES", "h200");
  const Outcome outcome = shell.run({"doctor", "--json"});
  EXPECT_EQ(outcome.exit_code, 1);
  const json test = outcome.json().at("self_tests").at(0);
  EXPECT_EQ(test.at("device"), "cuda:0");
  EXPECT_FALSE(test.at("ok"));
  EXPECT_THAT(outcome.err, HasSubstr("the self-test on cuda:0 is not passed"));
  const Outcome skipped = shell.run({"doctor", "--no-self-test", "--json"});
  EXPECT_EQ(skipped.exit_code, 0);
  EXPECT_TRUE(skipped.json().at("self_tests").empty());
}

TEST(DoctorsDriver, AnOlderMajorVersionThanNvrtcsIsNamed) {
  Shell shell;
  const json plain = shell.run({"doctor", "--json"}).json();
  if (!plain.at("nvrtc").at("found").get<bool>()) GTEST_SKIP() << "no NVRTC";
  shell.set("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH);
  shell.set("FAKE_CUDA_DEVICES", "h200");
  const std::string nvrtc = plain.at("nvrtc").at("version");
  const auto is_named = [&](const std::string& version) {
    shell.set("FAKE_CUDA_VERSION", version);
    const Outcome outcome = shell.run({"doctor", "--no-self-test"});
    return outcome.out.find("no driver that is new enough") != std::string::npos;
  };
  EXPECT_TRUE(is_named(std::to_string((std::stoi(nvrtc) - 1) * 1000 + 80)));
  EXPECT_FALSE(is_named(std::to_string(std::stoi(nvrtc) * 1000)));
}

}  // namespace
}  // namespace octile::tests
