#include "tools/common/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <vector>

namespace octile::tools {

const Option& Option::show_default() const {
  option_->capture_default_str();
  return *this;
}

const Option& Option::require() const {
  option_->required();
  return *this;
}

const Option& Option::split_at_commas() const {
  option_->delimiter(',');
  return *this;
}

const Option& Option::exclude(const Option& other) const {
  option_->excludes(other.option_);
  return *this;
}

CLI::App* add_subcommand(CLI::App& to, const std::string& name, const std::string& what,
                         const std::string& footer) {
  CLI::App* app = to.add_subcommand(name, what);
  if (!footer.empty()) app->footer(footer);
  return app;
}

CLI::App* add_group(CLI::App& to, const std::string& name, const std::string& what,
                    const std::string& footer) {
  CLI::App* app = add_subcommand(to, name, what, footer);
  app->require_subcommand(1);
  return app;
}

bool is_given(const CLI::App& subcommand) { return subcommand.parsed(); }

template <typename Value>
Option add_option(CLI::App& app, const std::string& names, Value& value, const std::string& what) {
  return Option(app.add_option(names, value, what));
}

template Option add_option(CLI::App&, const std::string&, std::string&, const std::string&);
template Option add_option(CLI::App&, const std::string&, int&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::int64_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::optional<std::int64_t>&,
                           const std::string&);
template Option add_option(CLI::App&, const std::string&, std::uint64_t&, const std::string&);
template Option add_option(CLI::App&, const std::string&, double&, const std::string&);
template Option add_option(CLI::App&, const std::string&, std::vector<std::string>&,
                           const std::string&);
template Option add_option(CLI::App&, const std::string&, std::vector<std::int64_t>&,
                           const std::string&);

Option add_flag(CLI::App& app, const std::string& names, bool& value, const std::string& what) {
  return Option(app.add_flag(names, value, what));
}

}  // namespace octile::tools
