// docs/octile.1 names every subcommand of `octile` and every option of each.
#include <gmock/gmock.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::IsSupersetOf;

// Returns the first group of every match.
std::set<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern, std::regex::ECMAScript | std::regex::multiline);
  std::set<std::string> all;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) {
    all.insert((*it)[1]);
  }
  return all;
}

// Returns the manual page with plain hyphens.
std::string read_manual() {
  std::ostringstream text;
  text << std::ifstream(OCTILE_SOURCE_DIR "/docs/octile.1").rdbuf();
  return std::regex_replace(text.str(), std::regex(R"(\\-)"), "-");
}

TEST(OctileManual, HasEverySubcommandAndOption) {
  const Shell shell;
  const std::string manual = read_manual();
  const std::string help = shell.run({"help"}).out;
  std::set<std::string> commands = matches(help.substr(help.find("Subcommands:")), "^  ([a-z]+) ");
  EXPECT_THAT(commands, IsSupersetOf({"demo", "emit", "compile", "tune", "bench", "cache"}));
  commands.erase("help");
  for (const std::string& command : commands) {
    EXPECT_TRUE(std::regex_search(manual, std::regex("\\.TP\n\\.BR? " + command + "\\b")))
        << command;
    std::set<std::string> options =
        matches(shell.run({"help", command}).out, "^ +(?:-[a-z],)?(--[a-z-]+)");
    options.erase("--help");
    for (const std::string& option : options) {
      EXPECT_TRUE(manual.find(option) != std::string::npos) << command << " " << option;
    }
  }
}

}  // namespace
}  // namespace octile::tests
