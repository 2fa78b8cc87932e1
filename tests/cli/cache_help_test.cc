// The manual page and the shell completion have every verb and every option of octile cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::set<std::string> verbs(const Shell& shell) {
  const std::string help = shell.run({"cache", "--help"}).out;
  return matches(help.substr(help.find("Subcommands:")), "^  ([a-z]+) ");
}

std::set<std::string> options(const Shell& shell, const std::string& verb) {
  std::set<std::string> all =
      matches(shell.run({"cache", verb, "--help"}).out, "^ +(?:-[a-z],)?(--[a-z-]+)");
  all.erase("--help");
  return all;
}

TEST(CacheManual, HasEveryVerbAndOption) {
  const Shell shell;
  const std::string manual = read_manual(shell, "cache");
  const std::set<std::string> all = verbs(shell);
  EXPECT_THAT(all, IsSupersetOf({"path", "config", "list", "show", "verify", "why", "export",
                                 "import", "prune", "clear", "stats"}));
  for (const std::string& verb : all) {
    EXPECT_THAT(manual, HasSubstr("\n.SS octile cache " + verb + "\n"));
    for (const std::string& option : options(shell, verb)) {
      EXPECT_THAT(manual, HasSubstr(option)) << verb;
    }
  }
}

// A verb's help ends in its own exit statuses, not in those of others.
TEST(CacheHelp, EndsInTheVerbsOwnExitStatuses) {
  const Shell shell;
  const std::set<std::string> with_three{"list", "show", "verify", "why", "export"};
  for (const std::string& verb : verbs(shell)) {
    const std::string help = shell.run({"help", "cache", verb}).out;
    const std::size_t statuses = help.find("Exit status: 0 ");
    ASSERT_NE(statuses, std::string::npos) << verb;
    const std::string words = std::regex_replace(help.substr(statuses), std::regex("\\s+"), " ");
    EXPECT_THAT(words, HasSubstr(" 1 failed")) << verb;
    EXPECT_THAT(words, HasSubstr(" 2 bad usage")) << verb;
    EXPECT_EQ(words.find(" 3 ") != std::string::npos, with_three.contains(verb)) << words;
    EXPECT_EQ(words.find(" 4 ") != std::string::npos, verb == "verify") << words;
  }
}

void collect_keys(const nlohmann::json& value, std::set<std::string>& keys) {
  if (value.is_object()) {
    for (const auto& [key, below] : value.items()) keys.insert(key);
  }
  if (value.is_structured()) {
    for (const nlohmann::json& below : value) collect_keys(below, keys);
  }
}

TEST(CacheManual, NamesEveryFieldOfTheJson) {
  const Shell shell;
  if (!has_compiler(shell)) GTEST_SKIP() << "no NVRTC";
  const std::string archive = (shell.folder() / "a.tar").string();
  const auto json_of = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "cache");
    arguments.emplace_back("--json");
    return shell.run(arguments).json();
  };
  const std::string why = "16x512";
  std::set<std::string> keys;
  collect_keys(json_of({"why", "--quantize", why}), keys);
  ASSERT_EQ(shell.run({"compile", "--quantize", "16x7168"}).exit_code, 0);
  const nlohmann::json list = json_of({"list"});
  collect_keys(list, keys);
  for (const std::vector<std::string>& verb : {std::vector<std::string>{"path"},
                                               {"config"},
                                               {"stats"},
                                               {"verify"},
                                               {"export", archive},
                                               {"import", archive},
                                               {"why", "--quantize", why},
                                               {"show", list.at(0).at("digest")},
                                               {"why", "--quantize", "16x7168"},
                                               {"prune", "--unused", "0s"}}) {
    collect_keys(json_of(verb), keys);
  }
  EXPECT_GT(keys.size(), 50);
  const std::string manual = read_manual(shell, "cache");
  for (const std::string& key : keys) {
    EXPECT_TRUE(std::regex_search(manual, std::regex("\\b" + key + "\\b"))) << key;
  }
}

std::set<std::string> completions(const Shell& shell, std::vector<std::string> words) {
  words.insert(words.begin(), {"complete", "--"});
  return matches(shell.run(words).out, "^(\\S+)$");
}

TEST(CacheCompletion, OffersEveryVerbAndOption) {
  const Shell shell;
  EXPECT_THAT(completions(shell, {"ca"}), ::testing::ElementsAre("cache"));
  EXPECT_EQ(completions(shell, {"cache", ""}), verbs(shell));
  EXPECT_THAT(
      completions(shell, {"bench", ""}),
      ::testing::ElementsAre("experts", "linear", "pieces", "quantize", "regret", "verdict"));
  EXPECT_THAT(completions(shell, {"bench", "experts", "--ro"}),
              ::testing::ElementsAre("--rounds", "--routing"));
  for (const std::string& verb : verbs(shell)) {
    std::set<std::string> wanted = options(shell, verb);
    wanted.insert("--help");
    EXPECT_EQ(completions(shell, {"cache", verb, "--"}), wanted) << verb;
  }
}

}  // namespace
}  // namespace octile::tests
