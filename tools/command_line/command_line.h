// Defines and reads the command line. A file that includes CLI11 takes about 3 CPU seconds longer
// to compile, so only this folder does, whose files are compiled as one.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "generator/core/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own name
class App;
class Option;
}  // namespace CLI

namespace octile::tools {

// A subcommand and its work after the command line was read. The work prints its result to stdout
// and returns the exit status; main prints an error. `work` may return a Status instead, if every
// success has exit status 0.
struct Command {
  template <typename Work>
  Command(CLI::App* of, Work work)
      : app(of), run([work = std::move(work)]() -> Result<int> {
          if constexpr (std::is_same_v<std::invoke_result_t<const Work&>, Status>) {
            return work().map([] { return 0; });
          } else {
            return work();
          }
        }) {}

  CLI::App* app;
  std::function<Result<int>()> run;
};

// Returns the values of an option that a shell offers.
using Completions = std::function<std::vector<std::string>()>;

// Further properties of an option that was added.
class Option {
 public:
  Option() = default;
  explicit Option(CLI::Option* option) : option_(option) {}
  bool is_given() const;               // false for an option that no subcommand has
  const Option& show_default() const;  // the help shows the value of the variable
  const Option& require() const;
  const Option& exclude(const Option& other) const;
  // Refuses numbers outside, which both ends are not.
  const Option& in_range(std::int64_t least, std::int64_t most) const;
  // The values that a shell offers, where files are not meant.
  const Option& complete_with(Completions values) const;

 private:
  CLI::Option* option_ = nullptr;
};

// The meaning of a subcommand's exit statuses, unless it has statuses of its own.
inline constexpr const char* kExitStatus =
    "Exit status: 0 done, 1 failed, 2 bad usage, 130 interrupted.";

// Returns a command line without subcommands, whose --version prints `version`.
std::shared_ptr<CLI::App> new_command_line(const std::string& what, const std::string& version);
// Reads the arguments, of which the first is the program's name. Returns the text of --help or
// --version, or nothing if a subcommand is given. Errors: kInvalidArgument, a sentence about the
// word that is wrong or missing.
Result<std::string> parse(CLI::App& command_line, int argc, const char* const* argv);

// `footer` says the exit statuses, all of them.
CLI::App* add_subcommand(CLI::App& to, const std::string& name, const std::string& what,
                         const std::string& footer = kExitStatus);
// Adds a subcommand with subcommands, of which one must be given.
CLI::App* add_group(CLI::App& to, const std::string& name, const std::string& what,
                    const std::string& footer);
bool is_given(const CLI::App& subcommand);

// Value is std::string, int, std::int64_t, optional or not, std::uint64_t, double, or a vector of
// std::string. An empty text, or one that is not a number, is refused in a sentence that names the
// option.
template <typename Value>
Option add_option(CLI::App& app, const std::string& names, Value& value, const std::string& what);
// Adds an option whose value may be left out: then `value` stays as it is, which the help shows.
Option add_optional_value(CLI::App& app, const std::string& names, double& value,
                          const std::string& what);
Option add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& what);

// Adds an option that takes several values, in one word with commas between them or in several.
// Value is std::string or std::int64_t, of which "1:256" stands for 1, 2, 4, ... 256. An empty part
// is refused.
template <typename Value>
Option add_list(CLI::App& app, const std::string& names, std::vector<Value>& values,
                const std::string& what);

// Returns what complete_with() was given for the option, or nothing.
Completions completions_of(const CLI::Option& option);

}  // namespace octile::tools
