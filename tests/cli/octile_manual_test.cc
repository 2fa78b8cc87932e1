// The manual pages name every subcommand of `octile` and every option of each, and are roff.
#include <gmock/gmock.h>

#include <set>
#include <sstream>
#include <string>

#include "runtime/base/environment.h"
#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

std::set<std::string> subcommands(const Shell& shell) {
  const std::string help = shell.run({"help"}).out;
  return matches(help.substr(help.find("Subcommands:")), "^  ([a-z]+) ");
}

TEST(OctileManual, HasEverySubcommandAndOption) {
  const Shell shell;
  const std::set<std::string> commands = subcommands(shell);
  EXPECT_THAT(commands, IsSupersetOf({"demo", "emit", "explain", "compile", "tune", "bench",
                                      "cache", "doctor", "help"}));
  const std::string first = read_manual(shell, "");
  for (const std::string& command : commands) {
    EXPECT_THAT(first, HasSubstr("\n.BR octile-" + command + " (1)\n"));
    const std::string manual = read_manual(shell, command);
    EXPECT_THAT(manual, StartsWith(".TH OCTILE-"));
    for (const std::string& option :
         matches(shell.run({"help", command}).out, "^ +(?:-[a-z],)?(--[a-z-]+)"))
      EXPECT_THAT(manual, HasSubstr(option)) << command;
  }
}

// The build installs the pages of a list; the command knows which there are.
TEST(OctileManual, EveryPageIsInstalled) {
  const Shell shell;
  const std::string lists = read_file(OCTILE_SOURCE_DIR "/tools/CMakeLists.txt");
  for (const std::string& page : matches(shell.run({"help", "--list-pages"}).out, "^(\\S+)"))
    EXPECT_THAT(lists, ::testing::ContainsRegex("[ (]" + page + "[ )\n]"));
}

TEST(OctileManual, HasEveryVariable) {
  const Shell shell;
  const std::string manual = read_manual(shell, "");
  for (const EnvironmentVariable& variable : environment_variables())
    EXPECT_THAT(manual, HasSubstr("\n.B " + std::string(variable.name) + "\n"));
}

// No line begins with a control character by accident, so that man prints all of it.
TEST(OctileManual, IsRoff) {
  const Shell shell;
  const std::set<std::string> requests{".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I",
                                       ".BR", ".IR", ".BI", ".RI", ".nf", ".fi"};
  for (const std::string& command : subcommands(shell)) {
    std::istringstream page(shell.run({"help", "--man", command}).out);
    for (std::string line; std::getline(page, line);) {
      if (line.starts_with('.')) {
        EXPECT_TRUE(requests.contains(line.substr(0, line.find(' ')))) << command << ": " << line;
      }
      EXPECT_FALSE(line.starts_with('\'')) << line;
    }
  }
}

}  // namespace
}  // namespace octile::tests
