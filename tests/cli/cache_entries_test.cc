// octile cache list, show, config and verify on entries that these tests write without a compiler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/cli/command.h"
#include "tests/support/cache_testing.h"

namespace octile::tests {
namespace {

using cache::Entry;
using cache::testing::make_entry;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr const char* kGemm =
    "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";
constexpr const char* kQuantize = "quantize rows=? cols=7168 x=bf16 q=e4m3:1x128 out=row";
constexpr const char* kOther = "quantize rows=? cols=2048 x=bf16 q=e5m2:tensor out=row";

// A cache of three entries with different problems, dates, registers and sizes.
class CacheEntries : public ::testing::Test {
 protected:
  CacheEntries() {
    int kernel = 0;
    for (const char* problem : {kGemm, kQuantize, kOther}) {
      Entry entry = make_entry(++kernel);
      entry.metadata.problem = problem;
      entry.metadata.registers = 100 - kernel;
      entry.metadata.date = "2026-01-0" + std::to_string(kernel) + "T00:00:00Z";
      entry.cubin.resize(static_cast<std::size_t>(1000 * kernel));
      if (kernel == 3) entry.identity.architecture = "sm_100a";
      EXPECT_TRUE(cache::testing::publish_in(root(), entry));
      entries_.push_back(entry);
    }
  }

  std::string root() const { return (shell_.folder() / "cache").string(); }
  std::string path(int i) const {
    return cache::testing::path_in(root(), entries_.at(static_cast<std::size_t>(i)));
  }
  std::string digest(int i) const {
    return cache::testing::stem_of(entries_.at(static_cast<std::size_t>(i))).identity;
  }
  void damage(int i) const { fs::resize_file(path(i), 100); }

  // Returns the kernels' names in the order of `list`.
  std::vector<std::string> listed(std::vector<std::string> options) const {
    options.insert(options.begin(), {"cache", "list", "--json"});
    const Outcome outcome = shell_.run(options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<std::string> names;
    for (const json& entry : outcome.json()) names.push_back(entry.value("name", "damaged"));
    return names;
  }

  Shell shell_;
  std::vector<Entry> entries_;
};

TEST_F(CacheEntries, AreFilteredByProblem) {
  EXPECT_THAT(listed({"--problem", "gemm n=7168"}), ElementsAre("octile_test_1"));
  EXPECT_THAT(listed({"--problem", "q=e4m3:*"}), ElementsAre("octile_test_2"));
  EXPECT_THAT(listed({"--problem", "*=e4m3:1x128"}),
              UnorderedElementsAre("octile_test_1", "octile_test_2"));
  EXPECT_THAT(listed({"--problem", "n=716"}), IsEmpty());  // words, not parts of words
}

TEST_F(CacheEntries, AreFilteredByDeviceAndRecipe) {
  EXPECT_THAT(listed({"--device", "h200"}), UnorderedElementsAre("octile_test_1", "octile_test_2"));
  EXPECT_THAT(listed({"--device", "sm_100a"}), ElementsAre("octile_test_3"));
  // A GEMM is of both recipes, and a quantiser whose scales are not powers of two is of one.
  EXPECT_THAT(listed({"--recipe", "blockwise"}), ElementsAre("octile_test_1"));
  EXPECT_THAT(listed({"--recipe", "blockwise:f32"}),
              UnorderedElementsAre("octile_test_1", "octile_test_2"));
}

TEST_F(CacheEntries, AreFilteredByAgeAndSize) {
  EXPECT_THAT(listed({"--newer-than", "36525d", "--sort", "name"}),
              ElementsAre("octile_test_1", "octile_test_2", "octile_test_3"));
  Entry fresh = make_entry(4);
  fresh.metadata.date = "2999-01-01T00:00:00Z";
  ASSERT_TRUE(cache::testing::publish_in(root(), fresh));
  EXPECT_THAT(listed({"--newer-than", "0s"}), ElementsAre("octile_test_4"));
  EXPECT_EQ(listed({"--older-than", "0s"}).size(), 3);
  EXPECT_THAT(listed({"--larger-than", "3000"}), ElementsAre("octile_test_3"));
  EXPECT_EQ(listed({"--smaller-than", "3000"}).size(), 3);
  EXPECT_EQ(listed({"--smaller-than", "1M", "--larger-than", "1K"}).size(), 4);
}

TEST_F(CacheEntries, AreSortedByAColumn) {
  EXPECT_THAT(listed({"--sort", "registers"}),
              ElementsAre("octile_test_3", "octile_test_2", "octile_test_1"));
  EXPECT_THAT(listed({"--sort", "size"}),
              ElementsAre("octile_test_1", "octile_test_2", "octile_test_3"));
  EXPECT_THAT(listed({"--sort", "date", "--reverse"}),
              ElementsAre("octile_test_3", "octile_test_2", "octile_test_1"));
}

TEST_F(CacheEntries, AreShownInTheColumnsAskedFor) {
  const Outcome outcome =
      shell_.run({"cache", "list", "--columns", "registers,name", "--sort", "name"});
  EXPECT_EQ(outcome.out,
            "  registers  name\n"
            "         99  octile_test_1\n"
            "         98  octile_test_2\n"
            "         97  octile_test_3\n"
            "\n  3 entries, " +
                outcome.out.substr(outcome.out.rfind(", ") + 2));
}

TEST_F(CacheEntries, DamagedOnesAreListedUnlessAFilterAsksWhatTheyDoNotSay) {
  damage(0);
  EXPECT_EQ(listed({}).size(), 3);
  EXPECT_EQ(listed({"--problem", "*"}).size(), 2);
  EXPECT_THAT(listed({"--smaller-than", "101"}), ElementsAre("damaged"));
}

TEST_F(CacheEntries, ShowSaysThatTheElfImageCannotBeRead) {
  const Outcome outcome = shell_.run({"cache", "show", digest(0), "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  const json entry = outcome.json();
  EXPECT_EQ(entry.at("registers"), 99);
  EXPECT_THAT(entry.at("elf").at("damaged").get<std::string>(), HasSubstr("ELF"));
}

TEST_F(CacheEntries, VerifySaysWhatItFoundByItsExitStatus) {
  damage(1);
  const Outcome outcome = shell_.run({"cache", "verify", "--json"});
  EXPECT_EQ(outcome.exit_code, 3);
  const json report = outcome.json();
  EXPECT_EQ(report.at("entries"), 3);
  EXPECT_EQ(report.at("damaged"), 3);  // two of them hold no ELF image
  EXPECT_EQ(report.at("good"), 0);
  int truncated = 0;
  for (const json& finding : report.at("findings")) {
    EXPECT_EQ(finding.at("state"), "damaged");
    if (finding.at("path") != path(1)) continue;
    ++truncated;
    EXPECT_THAT(finding.at("reason").get<std::string>(), HasSubstr("size: "));
  }
  EXPECT_EQ(truncated, 1);
  const Outcome text = shell_.run({"cache", "verify"});
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_THAT(text.out, HasSubstr("3 checked: 0 good, 3 damaged"));
}

TEST_F(CacheEntries, VerifyDoesNotCallAnotherVersionDamaged) {
  for (const int i : {1, 2}) fs::remove(path(i));
  std::fstream file(path(0), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(8);  // FORMAT.md: the version of the format
  file.put(2);
  file.close();
  const Outcome outcome = shell_.run({"cache", "verify", "--json"});
  EXPECT_EQ(outcome.exit_code, 0);
  const json report = outcome.json();
  EXPECT_EQ(report.at("damaged"), 0);
  EXPECT_EQ(report.at("good"), 0);
  EXPECT_EQ(report.at("other_version"), 1);
  EXPECT_EQ(report.at("findings").at(0).at("state"), "other version");
}

TEST(CacheConfig, SaysWhereEverySettingCameFrom) {
  Shell shell;
  const auto settings = [&] {
    std::map<std::string, json> all;
    const Outcome outcome = shell.run({"cache", "config", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    for (const json& setting : outcome.json()) all[setting.at("setting")] = setting;
    return all;
  };
  auto all = settings();
  EXPECT_EQ(all.at("root").at("source"), "OCTILE_CACHE_DIR");
  EXPECT_EQ(all.at("root").at("value"), (shell.folder() / "cache").string());
  EXPECT_EQ(all.at("offline").at("source"), "default");
  EXPECT_EQ(all.at("offline").at("value"), "off");
  EXPECT_EQ(all.at("max_bytes").at("source"), "default");
  EXPECT_EQ(all.at("max_bytes").at("value"), "5368709120");

  shell.set("OCTILE_CACHE_DIR", "");
  shell.set("XDG_CACHE_HOME", "relative");  // counts as unset
  shell.set("HOME", shell.folder().string());
  shell.set("OCTILE_OFFLINE", "1");
  shell.set("OCTILE_CACHE_MAX_BYTES", "0");
  shell.set("OCTILE_CACHE_ROOTS", shell.folder().string());
  all = settings();
  EXPECT_EQ(all.at("root").at("source"), "HOME");
  EXPECT_EQ(all.at("root").at("value"), (shell.folder() / ".cache/octile").string());
  EXPECT_EQ(all.at("offline").at("source"), "OCTILE_OFFLINE");
  EXPECT_EQ(all.at("offline").at("value"), "on");
  EXPECT_EQ(all.at("max_bytes").at("source"), "OCTILE_CACHE_MAX_BYTES");
  EXPECT_EQ(all.at("max_bytes").at("value"), "no bound");
  EXPECT_EQ(all.at("read_only_roots").at("value"), shell.folder().string());
  const Outcome text = shell.run({"cache", "config"});
  EXPECT_THAT(text.out, HasSubstr("lock_timeout_ms"));
}

}  // namespace
}  // namespace octile::tests
