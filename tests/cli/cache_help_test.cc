// The manual page and the shell completion know every verb and every option of octile cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::set<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern, std::regex::ECMAScript | std::regex::multiline);
  std::set<std::string> all;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) {
    all.insert((*it)[1]);
  }
  return all;
}

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
  std::ostringstream text;
  text << std::ifstream(OCTILE_SOURCE_DIR "/docs/octile-cache.1").rdbuf();
  const std::string manual = std::regex_replace(text.str(), std::regex(R"(\\-)"), "-");
  const std::set<std::string> all = verbs(shell);
  EXPECT_THAT(all, IsSupersetOf({"path", "config", "list", "show", "verify", "why", "warm",
                                 "export", "import", "prune", "stats"}));
  for (const std::string& verb : all) {
    EXPECT_TRUE(std::regex_search(manual, std::regex("\\.TP\n\\.BR? " + verb + "\\b"))) << verb;
    for (const std::string& option : options(shell, verb)) {
      EXPECT_THAT(manual, HasSubstr(option)) << verb;
    }
  }
}

// What bash offers after these words; the last is what has been typed of the next.
std::set<std::string> completions(const std::string& words, int index) {
  const std::string script = "bash -c '. " OCTILE_SOURCE_DIR
                             "/tools/completion/octile.bash; COMP_WORDS=(" OCTILE_COMMAND " " +
                             words + "); COMP_CWORD=" + std::to_string(index) +
                             "; _octile; printf \"%s\\n\" \"${COMPREPLY[@]}\"'";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(script.c_str(), "r"),
                                                             ::pclose);
  std::set<std::string> all;
  char line[256];
  while (pipe != nullptr && std::fgets(line, sizeof line, pipe.get()) != nullptr) {
    std::string word = line;
    word.pop_back();
    if (!word.empty()) all.insert(word);
  }
  return all;
}

TEST(CacheCompletion, OffersEveryVerbAndOption) {
  const Shell shell;
  EXPECT_THAT(completions("ca", 1), ::testing::ElementsAre("cache"));
  EXPECT_EQ(completions("cache \"\"", 2), verbs(shell));
  for (const std::string& verb : verbs(shell)) {
    std::set<std::string> wanted = options(shell, verb);
    wanted.insert("--help");
    EXPECT_EQ(completions("cache " + verb + " --", 3), wanted) << verb;
  }
}

}  // namespace
}  // namespace octile::tests
