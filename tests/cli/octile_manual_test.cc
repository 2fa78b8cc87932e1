// docs/octile.1 names every subcommand of `octile` and every option of each.
#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <string>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::IsSupersetOf;

TEST(OctileManual, HasEverySubcommandAndOption) {
  const Shell shell;
  const std::string manual = read_manual("octile.1");
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
