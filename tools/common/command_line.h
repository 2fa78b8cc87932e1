// Adds options to a subcommand. A file that includes CLI11 takes about 8 CPU seconds longer to
// compile, so the part that subcommands need is compiled once, here.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own name
class App;
class Option;
}  // namespace CLI

namespace octile::tools {

// Further properties of an option that was added.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  const Option& show_default() const;  // the help shows the value of the variable
  const Option& require() const;
  const Option& split_at_commas() const;
  const Option& exclude(const Option& other) const;

 private:
  CLI::Option* option_;
};

CLI::App* add_subcommand(CLI::App& to, const std::string& name, const std::string& what,
                         const std::string& footer = {});
// Adds a subcommand with subcommands, of which one must be given.
CLI::App* add_group(CLI::App& to, const std::string& name, const std::string& what,
                    const std::string& footer);
bool is_given(const CLI::App& subcommand);

// Value is std::string, int, std::int64_t, optional or not, std::uint64_t, double, or a vector of
// std::string or std::int64_t.
template <typename Value>
Option add_option(CLI::App& app, const std::string& names, Value& value, const std::string& what);
Option add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& what);

}  // namespace octile::tools
