// The command on a terminal: its width and its colours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/command.h"

namespace octile::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Runs the command on a terminal of this number of columns, with an empty cache, and returns what
// it shows. `variable`, if given, is set to 1.
std::string on_terminal(const Shell& shell, unsigned short columns,
                        const std::vector<std::string>& arguments, const char* variable = nullptr) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = columns;
  int master = -1;
  const pid_t child = ::forkpty(&master, nullptr, nullptr, &size);
  if (child == 0) {
    ::unsetenv("COLUMNS");   // NOLINT(concurrency-mt-unsafe): this process has one thread
    ::unsetenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe)
    ::setenv("OCTILE_CACHE_DIR", (shell.folder() / "cache").c_str(), 1);  // NOLINT
    if (variable != nullptr) ::setenv(variable, "1", 1);                  // NOLINT
    std::vector<std::string> words{OCTILE_COMMAND};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(OCTILE_COMMAND, argv.data());
    ::_exit(127);
  }
  std::string shown;
  char buffer[4096];
  for (ssize_t n; (n = ::read(master, buffer, sizeof buffer)) > 0;)
    shown.append(buffer, static_cast<std::size_t>(n));
  ::close(master);
  int status = 0;
  ::waitpid(child, &status, 0);
  return shown;
}

TEST(Terminal, HasItsWidth) {
  const Shell shell;
  for (const std::size_t columns : {40U, 60U, 120U}) {
    std::istringstream lines(
        on_terminal(shell, static_cast<unsigned short>(columns), {"help", "compile"}));
    std::size_t widest = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      widest = std::max(widest, line.size());
    }
    EXPECT_LE(widest, columns);
    EXPECT_GT(widest, columns - 15U) << "the width is used";
  }
}

TEST(Terminal, HasColoursUnlessTheyAreUnwanted) {
  const Shell shell;
  EXPECT_THAT(on_terminal(shell, 80, {"cache", "stats"}), HasSubstr("\x1b[1m"));
  EXPECT_THAT(on_terminal(shell, 80, {"cache", "stats"}, "NO_COLOR"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(on_terminal(shell, 80, {"bogus"}), HasSubstr("\x1b[31moctile:\x1b[0m "));
  EXPECT_THAT(on_terminal(shell, 80, {"bogus"}, "NO_COLOR"), Not(HasSubstr("\x1b")));
  EXPECT_THAT(shell.run({"cache", "stats"}).out, Not(HasSubstr("\x1b"))) << "no terminal";
}

}  // namespace
}  // namespace octile::tests
